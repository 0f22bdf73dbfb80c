"""Programs that use references of their own, as random search once found them."""

import pytest

from tests.runtime.loops.loop_program import Operation, Program
from tests.runtime.loops.loop_reference import differences, expected
from tests.runtime.loops.loop_trainer import run_program
from tests.runtime.rank_pool import Failed, RankPool

STEP: Operation = ("step",)

LOOPS: dict[str, tuple[Operation, ...]] = {
    "a step that scales gradients in a flat buffer": (
        *(("flat",), ("compute", "once", ((2,), (1, 5))), ("patch", 0.5)),
        *(STEP, ("flat_scale", 0.5), STEP, ("unpatch",), STEP),
    ),
    "an assigned gradient that nobody keeps, where ranks have different numbers of backward passes": (
        *(("assign", 3), ("compute", "once", ((1,), (2,))), ("compute", "once", ((), (1,)))),
        *(STEP, ("compute", "once", ((1,), (2,))), STEP),
    ),
    "a gradient in a flat buffer that is dropped before anybody reads it": (
        *(("flat",), ("compute", "once", ((0, 1, 2), (1, 2))), ("drop", 3), ("flat_scale", 0.5), STEP),
        *(("flat_scale", 0.0), ("compute", "once", ((0, 1), (1, 2))), STEP),
    ),
    "gradients that are kept, cleared in place and accumulated, and read before any step": (
        *(3 * (("zero", "optimizer", False), ("no_sync", (("compute", "once", ((0,), (0,))),)), ("keep",))),
        STEP,
    ),
    "two backward passes after a step in which one rank alone had gradients to keep": (
        *(("compute", "once", ((1,), ())), ("keep",), STEP, ("compute", "retain", ((0, 2), (0, 2)))),
        *(("read", None, "item"), ("log", 2), ("loss",), STEP, ("compute", "two", ((1,), (2,))), STEP),
    ),
}


@pytest.mark.parametrize("mode", ["overlap", "barrier"])
@pytest.mark.parametrize("name", LOOPS)
def test_references_hold_what_plain_training_has_there(pool: RankPool, name: str, mode: str) -> None:
    """What the loop reads through them, and the weights, are plain training's."""
    program = Program(
        size=2,
        kinds=("linear", "norm", "linear"),
        optimizer="adamw-groups",
        operations=LOOPS[name],
        plan=0,
        options={"mode": mode},
    )
    found = pool.results(run_program, program)
    assert differences(found, expected(program)) == []


def test_what_is_summed_is_not_assigned_again(pool: RankPool) -> None:
    """After ``step()`` a gradient that was read is the sum already: contributed again, it counts twice."""
    program = Program(
        size=2,
        kinds=("linear", "norm", "linear"),
        optimizer="adamw-groups",
        operations=(("compute", "once", ((0,), (0,))), STEP, ("replace", 0), STEP),
        options={"mode": "overlap", "op": "sum"},
    )
    found = pool.run(run_program, program)
    assert all(isinstance(each, Failed) and "call zero_grad() before" in each.reason for each in found)
