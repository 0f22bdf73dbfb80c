"""One rank alone reads gradients while the others wait in a collective of the user's own, and then go on."""

import datetime
import threading
import time
from collections.abc import Callable
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from pace.runtime.engine.buffers import FusedGroup
from pace.runtime.optimizer.reduction import Reduction
from tests.runtime.loops.loop_program import Operation, Program
from tests.runtime.loops.loop_readings import Entry
from tests.runtime.loops.loop_reference import differences, expected, unexplained
from tests.runtime.loops.loop_trainer import run_program
from tests.runtime.models import batches, build, weights
from tests.runtime.rank_pool import Failed, RankPool
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

BOTH: Operation = ("compute", "once", ((0, 1), (2, 0)))
ONE: Operation = ("compute", "once", ((0, 1), ()))
ALONE: tuple[Operation, ...] = (("log", 2), ("loss",))

LOOPS: dict[str, tuple[Operation, ...]] = {
    "clear": (BOTH, *ALONE, ("zero", "optimizer", True), BOTH, ("step",)),
    "make zeros": (BOTH, *ALONE, ("zero", "model", False), BOTH, ("step",)),
    "compute more": (BOTH, *ALONE, BOTH, ("step",)),
    "step": (BOTH, *ALONE, ("step",), ("zero", "optimizer", True)),
    "step, then compute on one rank": (BOTH, ("step",), ONE, *ALONE, ("step",)),
    "assign": (BOTH, *ALONE, ("zero", "optimizer", True), ("assign", 1), BOTH, ("step",)),
    "clear in a closure": (BOTH, *ALONE, ("closure", (("zero", "optimizer", True), BOTH))),
}


def run_with_slow_answers(rank: int, program: Program) -> list[Entry]:
    """Run a program where what a rank answers on the training thread's behalf takes long."""
    real = Reduction._read_marks

    def slow(self: Reduction, group: FusedGroup) -> None:
        if threading.current_thread().name == "pace.peers":
            time.sleep(0.03)
        real(self, group)

    with mock.patch.object(Reduction, "_read_marks", slow):
        return run_program(rank, program)


@pytest.mark.parametrize("mode", ["overlap", "barrier"])
@pytest.mark.parametrize("then", LOOPS)
def test_training_goes_on_when_the_reader_is_answered(pool: RankPool, then: str, mode: str) -> None:
    """Whatever a rank does next, what was reduced for the reader is not mixed up with it."""
    program = Program(
        size=2,
        kinds=("linear", "linear", "linear"),
        optimizer="sgd",
        operations=LOOPS[then] * 3,
        plan=1,
        options={"mode": mode},
    )
    found = pool.results(run_with_slow_answers, program)
    assert differences(found, expected(program)) == []


def test_what_others_have_cleared_is_refused(pool: RankPool) -> None:
    """A rank reads what the other one has cleared without ``step()``, and has nothing of any more."""
    clear: Operation = ("zero", "optimizer", False)
    program = Program(
        size=2,
        kinds=("linear", "linear", "linear"),
        optimizer="sgd",
        operations=(clear, BOTH, ("step",), clear, BOTH, ("log", 0), clear, BOTH),
        options={"mode": "overlap"},
    )
    found = pool.run(run_program, program)
    assert all(isinstance(each, Failed) for each in found)
    assert all("but not on rank 0, which reads it" in each.reason for each in found)


def test_another_backward_pass_after_one_rank_read_is_no_silent_error(pool: RankPool) -> None:
    """The other rank waits in no collective, so it cannot know that a sum was wanted before its next pass."""
    program = Program(
        size=2,
        kinds=("linear", "linear", "linear"),
        optimizer="sgd",
        operations=(BOTH, ("log", 2), BOTH, ("step",), BOTH, ("step",)),
        options={"mode": "overlap"},
    )
    found = pool.run(run_program, program)
    assert all(isinstance(each, Failed) for each in found)
    assert any("ran another backward pass after it read gradients" in each.reason for each in found)


@pytest.mark.parametrize("mode", ["overlap", "barrier"])
def test_more_backward_passes_beside_ranks_without_one_are_no_silent_error(mode: str) -> None:
    """A rank clips alone; in the next step, gradients are complete after each of its two backward passes."""
    once: tuple[Operation, ...] = (
        *(("zero", "optimizer", True), ("compute", "retain", ((), (), (0,)))),
        *(("norm", 0.05), ("step",)),
    )
    program = Program(
        size=3,
        kinds=("linear", "linear", "linear"),
        optimizer="adagrad-fused",
        operations=2 * once,
        options={"mode": mode},
    )
    with RankPool(3) as three:
        found = three.run(run_program, program)
    assert all(isinstance(each, Failed) for each in found)
    assert "put all backward passes of a step except the last in no_sync()" in found[2].reason


@pytest.mark.parametrize("mode", ["overlap", "barrier"])
def test_what_replaces_sums_that_nobody_asked_for_is_no_silent_error(pool: RankPool, mode: str) -> None:
    """A rank clips alone; in the next step, gradients are summed before each rank puts its own in."""
    program = Program(
        size=2,
        kinds=("linear", "linear", "linear"),
        optimizer="sgd",
        operations=(
            *(("zero", "optimizer", True), ("compute", "once", ((0, 0), ())), ("norm", 0.05), ("step",)),
            *(("zero", "optimizer", True), ("compute", "once", ((0,), (0,))), ("assign", 0), ("step",)),
        ),
        options={"mode": mode},
    )
    found = pool.run(run_program, program)
    assert all(isinstance(each, Failed) for each in found)
    assert all("read parameter.grad first and change it in place" in each.reason for each in found)


@pytest.mark.parametrize("mode", ["overlap", "barrier"])
def test_zeros_stay_where_one_rank_alone_clipped(pool: RankPool, mode: str) -> None:
    """``zero_grad(set_to_none=False)`` after its step, whose update is still to come."""
    program = Program(
        size=2,
        kinds=("linear", "linear", "linear"),
        optimizer="adam",
        operations=(
            *(("compute", "once", ((), (0,))), ("norm", 0.05)),
            *(("step",), ("zero", "optimizer", False)),  # and at the end gradients are read
        ),
        options={"mode": mode},
    )
    found = pool.run(run_program, program)
    assert unexplained(found, program) == []


def _functional(value: torch.Tensor) -> None:
    from torch.distributed import _functional_collectives

    total = _functional_collectives.all_reduce(value, "sum", list(range(dist.get_world_size())))
    total.add(1)


def _in_both_directions(value: torch.Tensor) -> None:
    other, peer = torch.zeros_like(value), 1 - dist.get_rank()
    pair = [dist.P2POp(dist.isend, value, peer), dist.P2POp(dist.irecv, other, peer)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()


# Torch's own objects that are waited for have no frame on the stack.
WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "work": lambda value: dist.all_reduce(value, async_op=True).wait(),
    "work, for some time": lambda value: dist.all_reduce(value, async_op=True).wait(
        datetime.timedelta(seconds=200)
    ),
    "future": lambda value: dist.all_reduce(value, async_op=True).get_future().wait(),
    "functional": _functional,
    "both directions": _in_both_directions,
}


def read_alone(rank: int, wait: str) -> tuple[Weights, list[torch.Tensor]]:
    """Train for three steps; rank 0 alone reads gradients. Return the weights, and what it read."""
    model = build("conv")
    optimizer = wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model, timeout_s=30.0)
    read = []
    for batch in batches("conv", 3, rank):
        optimizer.zero_grad()
        loss = model(*batch)
        backward(loss)
        if rank == 0:
            read += [parameter.grad.norm() for parameter in trainable(model) if parameter.grad is not None]
        WAITS[wait](loss.detach().clone())
        optimizer.step()
    trained = weights(model)
    optimizer.close()
    return trained, read


@pytest.mark.parametrize("wait", WAITS)
def test_however_the_others_wait_the_reader_is_answered(pool: RankPool, wait: str) -> None:
    """By torch's objects, whose ``wait`` has no frame, or by its operators."""
    (first, read), (second, _) = pool.results(read_alone, wait)
    assert equal_bits(first, second)
    assert difference(first, train_plainly(Case(steps=3), 2)) <= 1e-5
    assert len(read) == 3 * len(first)
