"""Loops in ``mode="check"``: those that are safe train as plainly, and nothing in them is refused."""

from typing import Any

import pytest

from tests.runtime.loops import kept_gradients, kept_optimizers, kept_references
from tests.runtime.loops.beside_plain import assert_trains_as_plainly
from tests.runtime.loops.loop_run import Loop, run_loop
from tests.runtime.loops.published_gans import ADVERSARIAL_LOOPS
from tests.runtime.loops.published_gradients import GRADIENT_LOOPS
from tests.runtime.loops.published_models import MODEL_LOOPS
from tests.runtime.loops.published_steps import STEP_LOOPS
from tests.runtime.rank_pool import Failed, RankPool

PUBLISHED = [*GRADIENT_LOOPS, *MODEL_LOOPS, *ADVERSARIAL_LOOPS, *STEP_LOOPS]
KEPT = [*kept_references.LOOPS, *kept_gradients.LOOPS, *kept_optimizers.LOOPS]
# A share of all, for the time: each kind has some. With PACE_CHECK=1, all tests of this folder run so.
SHARE = [*PUBLISHED[::6], *KEPT[::3]]
# Their optimizers need a barrier, so they cannot go wrong in this way.
BARRIER = ("quasi_newton", "patched_before")

MANNERS: dict[str, dict[str, Any]] = {
    "shards": {"sharding": "on"},
    "servers": {"over": "servers"},
    "attached": {"attach": True},
}


@pytest.mark.parametrize("loop", SHARE, ids=lambda loop: loop.__name__)
def test_safe_loops_train_as_plainly(pool: RankPool, loop: Loop) -> None:
    """Weights, and whatever the loop looked at, are those of the plain loop; or it is one for a barrier."""
    if loop.__name__ in BARRIER:
        for each in pool.run(run_loop, pool.size, loop, pool.backend, 6, {"mode": "check"}):
            assert isinstance(each, Failed)
            assert 'use mode="barrier" for this optimizer' in each.reason
        return
    assert_trains_as_plainly(pool, loop, steps=6, mode="check")


@pytest.mark.parametrize(
    "manner", ["shards", pytest.param("servers", marks=pytest.mark.pack("servers")), "attached"]
)
@pytest.mark.parametrize(
    "loop",
    [kept_references.moving_average, kept_references.clamped, kept_references.norms],
    ids=lambda loop: loop.__name__,
)
def test_so_they_do_in_other_manners(pool: RankPool, loop: Loop, manner: str) -> None:
    """With sharded updates, over parameter servers, and under DDP."""
    assert_trains_as_plainly(pool, loop, steps=6, mode="check", **MANNERS[manner])
