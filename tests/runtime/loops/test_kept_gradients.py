"""Gradients that a loop keeps, or keeps for longer than a step, are what they are in plain training."""

from collections.abc import Iterator

import pytest

from tests.runtime.loops import kept_gradients
from tests.runtime.loops.kept_manners import MARKED_MANNERS, check
from tests.runtime.loops.loop_run import Loop
from tests.runtime.rank_pool import RankPool


@pytest.fixture(scope="module")
def gloo() -> Iterator[RankPool]:
    """Two ranks over Gloo that stay for all loops."""
    with RankPool(2) as pool:
        yield pool


@pytest.mark.parametrize("manner", MARKED_MANNERS)
@pytest.mark.parametrize("loop", kept_gradients.LOOPS, ids=lambda loop: loop.__name__)
def test_kept_gradients_are_what_is_applied(gloo: RankPool, loop: Loop, manner: str) -> None:
    """What a loop does to gradients that it keeps is done to what the step uses."""
    check(gloo, loop, manner)
