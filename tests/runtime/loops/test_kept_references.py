"""Whoever holds a parameter, or its memory, sees and changes what plain training has there."""

from collections.abc import Iterator

import pytest

from tests.runtime.loops import kept_references
from tests.runtime.loops.kept_manners import MARKED_MANNERS, check
from tests.runtime.loops.loop_run import Loop
from tests.runtime.rank_pool import RankPool


@pytest.fixture(scope="module")
def gloo() -> Iterator[RankPool]:
    """Two ranks over Gloo that stay for all loops."""
    with RankPool(2) as pool:
        yield pool


@pytest.mark.parametrize("manner", MARKED_MANNERS)
@pytest.mark.parametrize("loop", kept_references.LOOPS, ids=lambda loop: loop.__name__)
def test_kept_references_are_current(gloo: RankPool, loop: Loop, manner: str) -> None:
    """What is read and written through references from before is plain training's."""
    check(gloo, loop, manner)
