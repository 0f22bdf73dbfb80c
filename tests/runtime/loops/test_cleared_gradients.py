"""Gradients cleared in mid-step, where ranks differ in what they have computed or sent by then."""

import pytest

from tests.runtime.loops.loop_program import Operation, Program
from tests.runtime.loops.loop_reference import differences, expected
from tests.runtime.loops.loop_trainer import run_program
from tests.runtime.models import batches, build
from tests.runtime.rank_pool import Failed, RankPool
from tests.runtime.training import OPTIMIZERS, backward, trainable, wrap

STEP: Operation = ("step",)
ZERO: Operation = ("zero", "optimizer", True)
KEEP_ZEROS: Operation = ("zero", "optimizer", False)
SAVE: Operation = ("save",)


def compute(*paths: tuple[int, ...]) -> Operation:
    """A backward pass: the units that each rank runs."""
    return ("compute", "once", paths)


def loop(*operations: Operation, plan: int | None, mode: str = "overlap") -> Program:
    """Three linear units trained by SGD; a plan's number shuffles what is fused."""
    return Program(
        size=2,
        kinds=("linear", "linear", "linear"),
        optimizer="sgd",
        operations=operations,
        plan=plan,
        options={"mode": mode},
    )


LOOPS = {
    "before the last update of some group": (STEP, compute((1,), (2,)), ZERO, compute((2,), (1,))),
    "to zeros, before the last update of some group": (
        *(STEP, compute((1,), (2,)), KEEP_ZEROS, compute((2,), (1,))),
        *(STEP, ZERO, compute((2,), (1,)), STEP),
    ),
    "where one rank had no backward pass": (
        *(compute((1,), (2,)), STEP, ZERO, compute((1,), ()), ZERO, compute((1,), (1,)), STEP),
        *(ZERO, compute((2,), (0, 1)), STEP),
    ),
    "where one rank had none, and the next gradients are clipped": (
        *(compute((1,), (2,)), STEP, ZERO, compute((1, 2), ()), ZERO, compute((1, 0), (1,)), ("norm", 0.1)),
        *(STEP, ZERO, compute((1,), (2,)), STEP),
    ),
    "by an assignment, where one rank had none": (
        *(compute((1,), (2,)), STEP, ZERO, compute((1, 2), ()), ("assign", 2), compute((1, 0), (1,))),
        *(STEP, ZERO, compute((1,), (2,)), STEP),
    ),
    "after they were read, where one rank has none afterwards": (
        *(ZERO, compute((1,), (2,)), ("read", None, "norm"), ZERO, compute((), (0, 1)), ("norm", 0.5)),
        *(STEP, ZERO, compute((2,), (0, 1)), STEP),
    ),
    "after a checkpoint between two backward passes": (
        *(compute((1,), (2,)), STEP, compute((1,), (2,)), SAVE, ("zero", 1, True), compute((1,), ()), STEP),
    ),
    "by another in their place, and what was there is kept": (
        *(compute((1,), (2,)), STEP, ZERO, compute((1, 0), (2, 0)), ("keep",), ("replace", 0), STEP),
        *(("compare",), compute((1, 0), (0,)), ("replace", 1), ("keep",), ("replace", 1), STEP, ("compare",)),
    ),
}


@pytest.mark.parametrize("mode", ["overlap", "barrier"])
@pytest.mark.parametrize("plan", [None, 0, 1])
@pytest.mark.parametrize("name", LOOPS)
def test_gradients_are_cleared_on_every_rank(pool: RankPool, name: str, plan: int | None, mode: str) -> None:
    """Whatever other ranks had computed or sent, what follows is as in plain training."""
    program = loop(*LOOPS[name], plan=plan, mode=mode)
    found = pool.results(run_program, program)
    assert differences(found, expected(program)) == []


def test_a_step_that_one_rank_skips_is_an_error_that_names_it(pool: RankPool) -> None:
    """It cleared its gradients after the backward pass instead of calling ``step()``, as for a bad loss."""
    for failed in pool.run(_skip_a_step):
        assert isinstance(failed, Failed)
        assert "rank 1 cleared the gradient of" in failed.reason
        assert "and rank 0 ran only one: let all ranks skip a step(), or none" in failed.reason


def _skip_a_step(rank: int) -> None:
    model = build("conv")
    with wrap(
        "gloo", OPTIMIZERS["sgd"](trainable(model)), model, mode="overlap", timeout_s=60.0
    ) as optimizer:
        for step, batch in enumerate(batches("conv", 6, rank)):
            optimizer.zero_grad()
            backward(model(*batch))
            if (rank, step) == (1, 3):
                optimizer.zero_grad()
                continue
            optimizer.step()
        optimizer.synchronize()


def test_what_was_lost_is_an_error_on_every_rank(pool: RankPool) -> None:
    """One rank's only ``zero_grad()`` of a step looks like the usual one: what it sends later is not kept."""
    operations = (compute((1,), (2,)), STEP, compute((1, 2), ()), ZERO, compute((1, 0), (1,)), STEP, SAVE)
    found = pool.run(run_program, loop(*operations, plan=1))
    for each in found:
        assert isinstance(each, Failed)
        assert "rank 0 cleared the gradient of units.1.weight between two backward passes" in each.reason
        assert "and rank 1 ran only one" in each.reason
