"""A process forked from one that trains has the model as plain training has it, and hangs nowhere."""

from collections.abc import Iterator

import pytest

from tests.runtime.loops import forked_loops
from tests.runtime.loops.kept_manners import MARKED_MANNERS, check
from tests.runtime.loops.loop_run import Loop
from tests.runtime.rank_pool import RankPool


@pytest.fixture(scope="module")
def gloo() -> Iterator[RankPool]:
    """Two ranks over Gloo that stay for all loops."""
    with RankPool(2) as pool:
        yield pool


@pytest.mark.races_with_machine(
    reason="a fork may copy a lock of torch's that a thread, of a server in the same process, holds just then"
)
@pytest.mark.parametrize("manner", MARKED_MANNERS)
@pytest.mark.parametrize("loop", forked_loops.LOOPS, ids=lambda loop: loop.__name__)
def test_forked_children_see_current_weights(gloo: RankPool, loop: Loop, manner: str) -> None:
    """Whatever a child does with the model right after the step, it does with the updated weights."""
    check(gloo, loop, manner)


def test_a_child_collects_nothing_that_its_parent_has_dropped(gloo: RankPool) -> None:
    """The end of a process group waits for threads, which the child has not: it would never come back."""
    assert gloo.run(forked_loops.dropped_before) == ["collected True"] * 2
