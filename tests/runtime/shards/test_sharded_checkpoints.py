"""``sharded_state()`` through torch.distributed.checkpoint: written by some ranks, read by others."""

import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from pace.errors import InvalidUse
from tests.runtime.launch import Backend, run_ranks
from tests.runtime.models import batches, build, weights
from tests.runtime.shards.jobs import halves_schedule
from tests.runtime.training import OPTIMIZERS, backward, difference, equal_bits, trainable, wrap

# Momentum only; scalars for each parameter; three tensors; none at all before the first step.
NAMES = ("sgd", "nadam", "adamw", "asgd")
SHARES = 6
STEPS = 4


def _train(optimizer: Any, model: Any, rank: int, size: int, steps: range) -> None:
    shares = [batches("branches", 2 * STEPS, number, double=True) for number in range(SHARES)]
    for step in steps:
        optimizer.zero_grad()
        for number in range(rank, SHARES, size):
            backward(model(*shares[number][step]) * (size / SHARES))
        optimizer.step()


def _save(rank: int, size: int, folder: str) -> Any:
    found = []
    for name in NAMES:
        model = build("branches", double=True)
        schedule = halves_schedule(build("branches", double=True), size, 3)
        inner = OPTIMIZERS[name](trainable(model))
        optimizer = wrap("gloo", inner, model, sharding="on", schedule=schedule)
        _train(optimizer, model, rank, size, range(STEPS))
        optimizer.param_groups[0]["lr"] *= 0.5
        state = {"model": model.state_dict(), "optimizer": optimizer.sharded_state()}
        save(state, checkpoint_id=str(Path(folder, name)))
        _train(optimizer, model, rank, size, range(STEPS, 2 * STEPS))
        found.append(weights(model))
        optimizer.close()
    return found


def _resume(rank: int, size: int, folder: str) -> Any:
    found = []
    for name in NAMES:
        model = build("branches", double=True)
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, 7.0)
        optimizer = wrap("gloo", OPTIMIZERS[name](trainable(model)), model, sharding="on")
        _train(optimizer, model, rank, size, range(1))  # what was there is replaced
        tensors = model.state_dict()
        load(
            {"model": tensors, "optimizer": optimizer.sharded_state()}, checkpoint_id=str(Path(folder, name))
        )
        model.load_state_dict(tensors)
        _train(optimizer, model, rank, size, range(STEPS, 2 * STEPS))
        found.append(weights(model))
        optimizer.close()
    return found


@pytest.mark.slow
def test_three_ranks_write_and_two_or_four_go_on_alike(tmp_path: Path) -> None:
    """State, hyper-parameters, and which parameters have had a gradient; into other shards."""
    saved = run_ranks(_save, 3, str(tmp_path))
    for size in (2, 4):
        resumed = run_ranks(_resume, size, str(tmp_path))
        for number, name in enumerate(NAMES):
            assert difference(resumed[0][number], saved[0][number]) <= 1e-8, (name, size)
            assert all(equal_bits(resumed[0][number], other[number]) for other in resumed), (name, size)


def _other_order(rank: int, _size: int, folder: str) -> str:
    said = ""
    for first in (True, False):
        model: Any = build("conv", double=True)
        if not first:
            model.to(memory_format=torch.channels_last)
        optimizer = wrap("gloo", OPTIMIZERS["adam"](trainable(model)), model, sharding="on")
        if first:
            optimizer.zero_grad()
            backward(model(*batches("conv", 1, rank, double=True)[0]))
            optimizer.step()
            save({"optimizer": optimizer.sharded_state()}, checkpoint_id=folder)
        else:
            try:
                load({"optimizer": optimizer.sharded_state()}, checkpoint_id=folder)
            except InvalidUse as error:
                said = str(error)
        optimizer.close()
    return said


def test_another_memory_format_is_refused(tmp_path: Path) -> None:
    """The elements of a piece would be others."""
    for said in run_ranks(_other_order, 2, str(tmp_path)):
        assert "give the model the same memory format" in said


def _close_behind(rank: int, _size: int, transport: str) -> int:
    """Read the state on all ranks; rank 1 does so when the others gather it for the last time."""
    model = build("conv", double=True)
    optimizer = wrap(transport, OPTIMIZERS["adamw"](trainable(model)), model, sharding="on")
    for batch in batches("conv", 2, rank, double=True):
        optimizer.zero_grad()
        backward(model(*batch))
        optimizer.step()
    optimizer.synchronize()
    update = optimizer._rounds._shard_update
    if rank == 1:
        while update._usage.num_gathered == 0:  # helps the others, in a thread
            time.sleep(0.01)
        update.give = lambda *_: False  # the thread is busy from now on
    states = [optimizer.state_dict()["state"]]
    optimizer.close()
    states.append(optimizer.state_dict()["state"])
    assert all(
        torch.equal(value, states[1][number][name])
        for number, values in states[0].items()
        for name, value in values.items()
    )
    return len(states[1])


def test_a_rank_that_reads_while_others_close_can_close_too(transport: str) -> None:
    """What all have gathered is then the last that there is."""
    found = run_ranks(_close_behind, 3, transport, backend=cast("Backend", transport), timeout_s=100)
    assert len(set(found)) == 1
    assert found[0] > 0


def _save_late(rank: int, _size: int, transport: str) -> bool:
    """Train without ``close()``; rank 0 asks for the state when other ranks have left the function."""
    model = build("branches", double=True)
    optimizer = wrap(transport, OPTIMIZERS["adamw"](trainable(model)), model, sharding="on")
    _train(optimizer, model, rank, 3, range(3))
    if rank:
        return True
    before = sorted(optimizer.state_dict()["state"])
    time.sleep(2.0)
    after = optimizer.state_dict()["state"]
    return sorted(after) == before and all(each["exp_avg_sq"].any() for each in after.values())


@pytest.mark.parametrize("transport", ["gloo", "horovod"])
def test_rank_0_can_save_after_others_have_dropped_their_wrappers(transport: Backend) -> None:
    """They stay until rank 0 has left its function, too."""
    assert all(run_ranks(_save_late, 3, transport, backend=transport))
