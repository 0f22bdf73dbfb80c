"""torch and Horovod give old names to new groups; nobody who meets under one reads what is left of it."""

from typing import Any

import horovod.torch as hvd
import pytest
import torch
import torch.distributed as dist

import pace.runtime.horovod
from pace.runtime.inductor.rank_agreement import CompilingRanks
from pace.runtime.transports import cuda
from pace.runtime.transports.gloo_groups import connect_group
from tests.runtime.engine.queued_device import QueuedDevice
from tests.runtime.launch import run_ranks
from tests.runtime.models import batches, build, weights
from tests.runtime.training import OPTIMIZERS, Weights, backward, equal_bits, trainable, wrap

WRAPS = 50


def _train(rank: int, **options: Any) -> Weights:
    model = build("conv")
    optimizer = wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model, timeout_s=20.0, **options)
    for batch in batches("conv", 2, rank):
        optimizer.zero_grad()
        backward(model(*batch))
        optimizer.step()
    optimizer.close()
    return weights(model)


def _wrap_often(rank: int, size: int) -> list[Weights]:
    found = []
    for number in range(WRAPS):
        group: Any = dist.new_group(list(range(size))) if number % 2 else None
        found.append(_train(rank, process_group=group))
        if group is not None:
            dist.destroy_process_group(group)
    return found


def test_a_job_wraps_closes_and_wraps_again_fifty_times() -> None:
    """Over the job's process group, and over others that end, in a store that keeps their keys."""
    first, second = run_ranks(_wrap_often, 2)
    for mine, theirs in zip(first, second, strict=True):
        assert equal_bits(mine, theirs)
        assert equal_bits(mine, first[0])


class _QueuedSums(cuda.CudaTransport):
    """The transport of GPUs on a simulated device, with Gloo's sums in place of NCCL's."""

    def allreduce(self, segment: torch.Tensor, name: str, done: Any, after: Any = None) -> Any:
        """Sum at once; see ``Transport``."""
        del name, after
        self._nccl.allreduce([segment], self._sum).wait()
        done(None)


def _sum_over_new_groups(rank: int, _size: int) -> list[float]:
    vars(cuda).update(
        connect_nccl=lambda store, rank, size, timeout: connect_group(
            store, "nccl", rank, size, timeout=timeout
        )
    )
    vars(dist).update(get_backend=lambda _group=None: "nccl")
    found = []
    for number in range(WRAPS):
        device = QueuedDevice()
        transport = _QueuedSums(device, timeout_s=20.0)  # type: ignore[arg-type]
        value = torch.full((3,), float(rank + number))
        transport.allreduce(value, "value", lambda _error: None)
        transport.close(failed=False)
        device.close()
        found.append(value[0].item())
    return found


def test_the_sums_of_a_gpu_meet_again_over_old_names() -> None:
    """A group of NCCL that is made by its ranks alone gets the name, and the keys, of one that is gone."""
    expected = [2.0 * number + 1.0 for number in range(WRAPS)]
    assert run_ranks(_sum_over_new_groups, 2) == [expected, expected]


def _plan_again(rank: int, size: int) -> list[list[int]]:
    found = []
    other: Any = dist.new_group(list(range(size)))
    for number in range(4):
        found.append(CompilingRanks(None, 20.0).gather(rank + number, "a test"))
        dist.destroy_process_group(other)
        other = dist.new_group(list(range(size)))
    return found


def test_compiling_ranks_meet_again_over_old_names() -> None:
    """Planners in a job that makes and destroys process groups, whose names torch counts."""
    expected = [[number, number + 1] for number in range(4)]
    assert run_ranks(_plan_again, 2) == [expected, expected]


def _train_in_sets(rank: int, _size: int) -> list[tuple[int, list[Any]]]:
    pace.runtime.horovod.init()
    found = []
    for ranks in ([0, 1], [1, 2], [0, 2]):
        group = hvd.add_process_set(ranks)
        number = group.process_set_id
        if rank in ranks:
            model = build("conv")
            optimizer = wrap(
                "horovod",
                OPTIMIZERS["sgd"](trainable(model)),
                model,
                process_set=group,
                timeout_s=20.0,
            )
            for batch in batches("conv", 2, rank):
                optimizer.zero_grad()
                backward(model(*batch))
                optimizer.step()
            optimizer.close()
            found.append((number, [weights(model)]))
        hvd.barrier()
        hvd.remove_process_set(group)
    return found


@pytest.mark.horovod
def test_process_sets_with_the_number_of_a_removed_one() -> None:
    """Horovod counts sets that exist, so ranks with another past share a number."""
    results = run_ranks(
        _train_in_sets, 3, backend="horovod", environment={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    )
    numbers = {number for found in results for number, _ in found}
    assert len(numbers) == 1
    for one, other, pair in ((0, 1, (0, 0)), (1, 2, (1, 0)), (0, 2, (1, 1))):
        assert equal_bits(results[one][pair[0]][1][0], results[other][pair[1]][1][0])
