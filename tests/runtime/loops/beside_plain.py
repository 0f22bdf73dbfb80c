"""Compares a loop under the runtime with the same loop whose gradients are averaged by hand."""

from collections.abc import Callable
from typing import Any

from tests.runtime.loops.loop_reference import first_difference
from tests.runtime.loops.loop_run import Loop, run_loop
from tests.runtime.rank_pool import RankPool


def assert_trains_as_plainly(
    pool: RankPool, loop: Loop, *, under: RankPool | None = None, steps: int = 9, **options: Any
) -> None:
    """Assert that weights, and whatever the loop looked at, are the plain loop's; weights to the bit alike.

    Parameters
    ----------
    pool
        Ranks over Gloo, which train plainly.
    under
        Ranks that train under the runtime, of a transport of their own; the same by default.
    """
    assert_same_training(pool, under or pool, loop, run_loop, steps=steps, **options)


def assert_same_training(
    pool: RankPool, under: RankPool, loop: Loop, task: Callable[..., Any], *, steps: int, **options: Any
) -> None:
    """Compare as above, with loops run by `task`, which takes the arguments of ``run_loop``."""
    # Plain training is the same whatever it is compared with.
    plainly = pool.results_once(task, pool.size, loop, None, steps, {})
    wrapped = under.results(task, under.size, loop, under.backend, steps, options)
    for rank, ((weights, seen), (expected, looked_for)) in enumerate(zip(wrapped, plainly, strict=True)):
        assert not (said := first_difference(weights, expected, 1e-9)), f"weights of rank {rank}: {said}"
        assert not (said := first_difference(seen, looked_for, 1e-8)), f"seen by rank {rank}: {said}"
        same = zip(weights, wrapped[0][0], strict=True)
        assert all(a.tobytes() == b.tobytes() for a, b in same), f"last bits of rank {rank}"
