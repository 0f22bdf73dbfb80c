"""Loops on a simulated GPU, whose gradients are computed after their hooks run, over real Gloo.

``PACE_TEST_DEVICE=cuda`` has the other files' loops train on a real one; see ``loop_device``.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.runtime.engine.queued_device import simulate_gpu
from tests.runtime.loops import published_gradients
from tests.runtime.loops.beside_plain import assert_same_training
from tests.runtime.loops.loop_run import Loop, run_loop
from tests.runtime.rank_pool import RankPool

LOOPS = (
    published_gradients.logging_on_one_rank,
    published_gradients.gradient_noise,
    published_gradients.trust_ratios,
)


def run_on_device(rank: int, size: int, loop: Loop, transport: str | None, *arguments: Any) -> Any:
    """Run a loop; under the runtime, as if its model were on a GPU."""
    if transport is not None:
        simulate_gpu(rank)
    return run_loop(rank, size, loop, transport, *arguments)


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """Ranks of these tests alone: their wrappers take every model for one on a GPU."""
    with RankPool(2, timeout_s=100) as ranks:
        yield ranks


@pytest.mark.parametrize("mode", ["overlap", "barrier"])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_loop_trains_on_a_device_as_without_the_runtime(pool: RankPool, loop: Loop, mode: str) -> None:
    """Also one that reads gradients on one rank alone, while the others wait in a collective of their own."""
    assert_same_training(pool, pool, loop, run_on_device, steps=9, mode=mode)
