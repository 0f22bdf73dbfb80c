"""Runs a grid: in this process or in several, with a bounded number of points on their way."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import lru_cache
from itertools import islice, pairwise
from multiprocessing import get_context

from pace.documents.base import refuse_other
from pace.documents.profile import Profile
from pace.errors import InvalidOptions, InvalidProfile
from pace.simulation import make_policy, run_policy
from pace.whatif.grid import Grid
from pace.whatif.results import Cell, WhatIf
from pace.whatif.scenario import Scenario, computed_at, measured_batch, networked_at
from pace.whatif.target import answer_all

# Starting a process and loading compiled loops takes about as long as simulating some hundred points.
POINTS_WORTH_PROCESSES = 400
MOST_PROCESSES = 1024
POINTS_TOGETHER = 50
SAMPLED_POINTS = 6

Priced = tuple[float, tuple[float, ...]]
Progress = Callable[[int], None]


def what_if(
    profile: Profile, grid: Grid, *, processes: int | None = None, progress: Progress | None = None
) -> WhatIf:
    """Simulate every point of a grid under every policy.

    If the grid has a `target_efficiency`, find the bandwidth at which each policy reaches it.

    Parameters
    ----------
    processes
        Number of processes that simulate. By default, one for each CPU that this process may use, and only
        one for small grids. The results do not depend on it. New processes import the calling script. If the
        script calls this function at its top level, it needs ``if __name__ == "__main__":``.
    progress
        Called with the number of cells done since the last call.

    Raises
    ------
    InvalidOptions
        If the profile cannot answer for the grid.
    """
    refuse_other(profile, Profile, InvalidProfile)
    refuse_other(grid, Grid, InvalidOptions)
    grid.refuse_misfits(profile)
    if processes is None:
        processes = _num_processors() if grid.num_points >= POINTS_WORTH_PROCESSES else 1
    if not 1 <= processes <= MOST_PROCESSES:
        raise InvalidOptions(f"processes is {processes}: expected 1 to {MOST_PROCESSES}")
    cells: list[Cell] = []
    batch = measured_batch(profile)
    for scenario, priced in zip(grid.scenarios(), _price_all(profile, grid, processes), strict=True):
        cells += _cells(profile, grid, scenario, priced, batch)
        if progress is not None:
            progress(len(grid.policies))
    answers = () if grid.target_efficiency is None else answer_all(profile, grid, grid.target_efficiency)
    return WhatIf(profile=profile, grid=grid, cells=tuple(_with_gains(grid, cells)), answers=answers)


def estimate_s(profile: Profile, grid: Grid, *, processes: int | None = None) -> float:
    """Return about how many seconds a grid takes, from simulating a few of its points."""
    grid.refuse_misfits(profile)
    step = max(grid.num_points // SAMPLED_POINTS, 1)
    sample = [grid.scenario(number) for number in range(0, grid.num_points, step)[:SAMPLED_POINTS]]
    worker = _Worker(profile, grid)
    worker.price(sample[0])  # loads or compiles the inner loops
    start = time.perf_counter()
    for scenario in sample:
        worker.price(scenario)
    return (time.perf_counter() - start) / len(sample) * grid.num_points / (processes or _num_processors())


def _num_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Worker:
    """Prices points of one grid; keeps the profiles whose compute it changed last."""

    def __init__(self, profile: Profile, grid: Grid) -> None:
        self._grid = grid
        self._policies = [make_policy(name) for name in grid.policies]

        @lru_cache(maxsize=4)
        def computed(compute_speedup: float, batch: float | None, compression: float) -> Profile:
            changed = computed_at(
                profile, Scenario(compute_speedup=compute_speedup, batch=batch, compression=compression)
            )
            assert changed.timing is not None  # made once here, and not for every network
            return changed

        self._computed = computed

    def price(self, scenario: Scenario) -> Priced:
        """Return the compute bound and every policy's window."""
        changed = self._computed(scenario.compute_speedup, scenario.batch, scenario.compression)
        point = networked_at(changed, scenario, self._grid.two_level)
        windows = tuple(run_policy(point, policy).iteration_s for policy in self._policies)
        return point.timing.compute_s, windows


_of_process: _Worker | None = None


def _start(profile: Profile, grid: Grid) -> None:
    global _of_process
    _of_process = _Worker(profile, grid)


def _price_some(scenarios: list[Scenario]) -> list[Priced]:
    assert _of_process is not None
    return [_of_process.price(scenario) for scenario in scenarios]


def _price_all(profile: Profile, grid: Grid, processes: int) -> Iterator[Priced]:
    if processes == 1:
        worker = _Worker(profile, grid)
        yield from (worker.price(scenario) for scenario in grid.scenarios())
        return
    with ProcessPoolExecutor(
        max_workers=processes, mp_context=get_context("spawn"), initializer=_start, initargs=(profile, grid)
    ) as pool:
        on_their_way: deque[Future[list[Priced]]] = deque()
        chunks = _chunks(grid.scenarios())
        for chunk in chunks:
            on_their_way.append(pool.submit(_price_some, chunk))
            if len(on_their_way) >= 4 * processes:
                yield from on_their_way.popleft().result()
        while on_their_way:
            yield from on_their_way.popleft().result()


def _chunks(scenarios: Iterable[Scenario]) -> Iterator[list[Scenario]]:
    iterator = iter(scenarios)
    while chunk := list(islice(iterator, POINTS_TOGETHER)):
        yield chunk


def _cells(
    profile: Profile, grid: Grid, scenario: Scenario, priced: Priced, batch: float | None
) -> Iterator[Cell]:
    compute_s, windows = priced
    workers = profile.workers if scenario.workers is None else scenario.workers
    on_each = batch if scenario.batch is None else scenario.batch
    against = windows[grid.policies.index(grid.baseline_policy)]
    place = asdict(scenario)
    for policy, window in zip(grid.policies, windows, strict=True):
        yield Cell(
            **place,
            policy=policy,
            iteration_s=window,
            compute_s=compute_s,
            throughput=workers * (on_each or 1.0) / window if window else 0.0,
            scaling_efficiency=compute_s / window if window else 1.0,
            speedup=against / window if window else 1.0,
        )


def _with_gains(grid: Grid, cells: list[Cell]) -> Iterator[Cell]:
    """Fill in what each Gb/s is worth between neighbors in bandwidth."""
    order = sorted(range(len(grid.bandwidth_gbps)), key=lambda at: grid.bandwidth_gbps[at])
    following = dict(pairwise(order))
    policies, bandwidths = len(grid.policies), len(grid.bandwidth_gbps)
    for number, cell in enumerate(cells):
        at = number // policies % bandwidths if bandwidths else 0
        if at not in following:
            yield cell
            continue
        after = cells[number + (following[at] - at) * policies]
        wider = grid.bandwidth_gbps[following[at]] - grid.bandwidth_gbps[at]
        gain = after.throughput / cell.throughput - 1 if cell.throughput else 0.0
        yield replace(cell, gain_per_gbps=gain / wider)
