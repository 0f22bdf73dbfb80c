"""Horovod's own functions beside training: they find the other ranks, and lose no update."""

from typing import Any

import pytest
import torch

from pace.errors import InvalidUse
from tests.runtime.launch import run_ranks, try_ranks
from tests.runtime.models import Batch, batches, build, weights
from tests.runtime.training import (
    OPTIMIZERS,
    Case,
    Weights,
    backward,
    difference,
    equal_bits,
    train_plainly,
    trainable,
    wrap,
)

pytestmark = pytest.mark.horovod


def _step(model: Any, optimizer: Any, batch: Batch) -> torch.Tensor:
    optimizer.zero_grad()
    loss: torch.Tensor = model(*batch)
    backward(loss)
    optimizer.step()
    return loss.detach().reshape(1)


def _call_without_names(rank: int, size: int) -> tuple[Weights, list[list[float]]]:
    import horovod.torch as hvd

    import pace.runtime.horovod

    alone = hvd.ProcessSet([0])
    pace.runtime.horovod.init(process_sets=[alone])
    model = build("conv")
    optimizer = wrap("horovod", OPTIMIZERS["sgd"](trainable(model)), model)
    found = []
    for batch in batches("conv", 20, rank):
        each = _step(model, optimizer, batch)
        if rank == 0:
            hvd.allreduce(each, process_set=alone)
        both = torch.cat([each] * size)
        one_of = [
            hvd.allreduce(each),
            hvd.allgather(each).mean(0, keepdim=True),
            hvd.reducescatter(both),
            *hvd.grouped_allreduce([each]),
            *[rows.mean(0, keepdim=True) for rows in hvd.grouped_allgather([each])],
            *hvd.grouped_reducescatter([both]),
        ]
        hvd.broadcast(each, 0)
        hvd.alltoall(both)
        found.append([value.item() for value in one_of])
    trained = weights(model)
    optimizer.close()
    return trained, found


def test_collectives_without_a_name_find_one_another() -> None:
    """Horovod would name them by how much each process has sent, in which ranks differ."""
    first, second = run_ranks(_call_without_names, 2, backend="horovod", timeout_s=120)
    assert difference(first[0], train_plainly(Case(), 2)) <= 1e-5
    for mine, theirs in zip(first[1], second[1], strict=True):
        assert mine == pytest.approx([mine[0]] * 6)
        assert mine == pytest.approx(theirs)


def _join_after_each(rank: int, _size: int, epochs: list[list[int]]) -> Weights:
    import horovod.torch as hvd

    import pace.runtime.horovod

    pace.runtime.horovod.init()
    model = build("conv")
    optimizer = wrap("horovod", OPTIMIZERS["sgd"](trainable(model)), model)
    shares = iter(batches("conv", 20, rank))
    for steps in epochs:
        for _ in range(steps[rank]):
            _step(model, optimizer, next(shares))
        hvd.join()
    trained = weights(model)
    optimizer.close()
    return trained


def test_ranks_join_after_equally_many_steps() -> None:
    """Updates are pending at that time, and Horovod adds zeros for a rank that has joined."""
    epochs = [[steps, steps] for steps in (4, 5, 1, 4, 6)]
    for trained in run_ranks(_join_after_each, 2, epochs, backend="horovod"):
        assert difference(trained, train_plainly(Case(), 2)) <= 1e-5


@pytest.mark.parametrize("most", [4, 5, 7])
def test_steps_after_another_rank_has_joined_are_refused(most: int) -> None:
    """Their sums would lack a rank, and its optimizer their updates."""
    goes_on, joined = try_ranks(_join_after_each, 2, [[most, 3]], backend="horovod", timeout_s=60)
    assert goes_on.error == "InvalidUse"
    assert "rank 1 called hvd.join() while others went on: give all ranks equally many" in goes_on.message
    assert joined.error == "HorovodInternalError"


def _shut_down_and_begin_again(rank: int, _size: int) -> tuple[Weights, str]:
    import horovod.torch as hvd

    import pace.runtime.horovod

    pace.runtime.horovod.init()
    model = build("conv")
    inner = OPTIMIZERS["sgd"](trainable(model))
    optimizer = wrap("horovod", inner, model)
    shares = batches("conv", 20, rank)
    for batch in shares[:7]:
        _step(model, optimizer, batch)
    hvd.shutdown()
    pace.runtime.horovod.init()
    with pytest.raises(InvalidUse) as refused:
        _step(model, optimizer, shares[7])
    optimizer = wrap("horovod", inner, model)
    for batch in shares[7:]:
        hvd.allreduce(_step(model, optimizer, batch))
    hvd.shutdown()
    return weights(model), str(refused.value)


def test_shutdown_applies_the_last_updates_first() -> None:
    """Scripts for Horovod do not close their optimizer; what they wrapped needs another wrapper then."""
    first, second = run_ranks(_shut_down_and_begin_again, 2, backend="horovod", timeout_s=60)
    assert difference(first[0], train_plainly(Case(), 2)) <= 1e-5
    assert equal_bits(first[0], second[0])
    assert "wrap it again" in first[1]


def _end_sets(_rank: int, _size: int) -> Weights:
    import horovod.torch as hvd

    import pace.runtime.horovod

    pace.runtime.horovod.init()
    group = hvd.add_process_set([1, 2])
    model = build("conv")
    if group.included():
        optimizer = wrap("horovod", OPTIMIZERS["sgd"](trainable(model)), model, process_set=group)
        for batch in batches("conv", 20, group.rank()):
            _step(model, optimizer, batch)
    hvd.remove_process_set(group)
    hvd.barrier()
    return weights(model)


def test_a_process_set_is_removed_after_its_last_updates() -> None:
    """Its wrappers end with it, and the job goes on."""
    environment = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    _, first, second = run_ranks(_end_sets, 3, backend="horovod", timeout_s=60, environment=environment)
    assert difference(first, train_plainly(Case(), 2)) <= 1e-5
    assert equal_bits(first, second)


def _wrap_twice(_rank: int, _size: int) -> str:
    import horovod.torch as hvd

    import pace.runtime.horovod

    pace.runtime.horovod.init()
    model = build("conv")
    theirs = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](trainable(model)))
    with pytest.raises(InvalidUse) as refused:
        wrap("horovod", theirs, model)
    return str(refused.value)


def test_an_optimizer_of_horovod_is_refused() -> None:
    """Both would sum gradients."""
    for said in run_ranks(_wrap_twice, 2, backend="horovod", timeout_s=60):
        assert "use pace.runtime.horovod.DistributedOptimizer instead" in said
