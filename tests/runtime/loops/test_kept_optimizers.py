"""What a loop writes into its optimizer, or puts in place of its methods, holds."""

from collections.abc import Iterator

import pytest

from tests.runtime.loops import kept_optimizers
from tests.runtime.loops.kept_manners import MARKED_MANNERS, check
from tests.runtime.loops.loop_run import Loop
from tests.runtime.rank_pool import RankPool


@pytest.fixture(scope="module")
def gloo() -> Iterator[RankPool]:
    """Two ranks over Gloo that stay for all loops."""
    with RankPool(2) as pool:
        yield pool


@pytest.mark.parametrize("manner", MARKED_MANNERS)
@pytest.mark.parametrize("loop", kept_optimizers.LOOPS, ids=lambda loop: loop.__name__)
def test_groups_state_and_methods_are_the_loops(gloo: RankPool, loop: Loop, manner: str) -> None:
    """Learning rates, state and patches reach the update."""
    check(gloo, loop, manner)
