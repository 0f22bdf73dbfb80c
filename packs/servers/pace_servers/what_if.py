"""What-ifs of parameter servers: how many, where, on which network, with how many workers, how consistent."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from pace.documents.cluster import Consistency
from pace.documents.profile import Profile
from pace.errors import InvalidOptions
from pace.simulation import make_policy, run_policy
from pace.whatif.scenario import GBPS, Scenario, networked_at
from pace_servers.planning.clusters import cluster_for
from pace_servers.simulation.run import run_server_policy

# Windows of every point when op durations jitter: stale and late workers only show over several.
WINDOWS = 10
MOST_CELLS = 20_000
MOST_STALENESS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerGrid:
    """The questions: one point for every combination.

    Attributes
    ----------
    colocated
        Whether servers run on the workers' hosts; then points with more servers than workers are left out.
    bandwidth_gbps, workers
        What was profiled where left out.
    staleness
        How many windows a worker may be ahead of the slowest one: a number, "sync" for 0, "async" for no
        limit.
    jitter
        Relative spread of op durations; without it workers run in lock step and staleness changes little.
    """

    servers: tuple[int, ...]
    colocated: bool = False
    bandwidth_gbps: tuple[float, ...] = ()
    workers: tuple[int, ...] = ()
    staleness: tuple[str, ...] = ("sync",)
    policies: tuple[str, ...] = ("fifo", "bytescheduler", "pace")
    jitter: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCell:
    """One policy at one point.

    Attributes
    ----------
    iteration_s
        Mean window, of the slowest worker unless it is async.
    allreduce_s
        The window of our all-reduce schedule over a ring of the same links, without servers.
    speedup
        Over the first policy at the same point.
    """

    servers: int
    colocated: bool
    bandwidth_gbps: float | None
    workers: int
    staleness: str
    policy: str
    iteration_s: float
    allreduce_s: float
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWhatIf:
    """All cells, point by point."""

    profile: str
    grid: ServerGrid
    cells: tuple[ServerCell, ...]

    def to_document(self) -> dict[str, Any]:
        """Return what JSON holds."""
        cells = [asdict(cell) for cell in self.cells]
        return {"profile": self.profile, "grid": asdict(self.grid), "cells": cells}


def what_if_servers(
    profile: Profile, grid: ServerGrid, *, progress: Callable[[int], None] | None = None
) -> ServerWhatIf:
    """Simulate every point of the grid under every policy.

    Raises
    ------
    InvalidOptions
        If a number is out of range, or the profile says nothing of a network.
    """
    points = [
        point
        for point in product(
            grid.workers or (profile.workers,), grid.bandwidth_gbps or (None,), grid.servers, grid.staleness
        )
        if not (grid.colocated and (point[2] > point[0] or point[0] < 2))
    ]
    if not points:
        raise InvalidOptions(
            "no setting is left: colocated servers need at least as many workers, and at least 2"
        )
    if len(points) * len(grid.policies) > MOST_CELLS:
        raise InvalidOptions(
            f"{len(points) * len(grid.policies):,} simulations; at most {MOST_CELLS:,} are allowed: "
            "give fewer values"
        )
    cells: list[ServerCell] = []
    rings: dict[tuple[int, float | None], float] = {}
    for workers, gbps, servers, staleness in points:
        scenario = Scenario(workers=workers, bandwidth_gbps=gbps)
        if (workers, gbps) not in rings:
            ring = networked_at(profile, Scenario(workers=workers, bandwidth_gbps=gbps, algorithm="ring"))
            rings[workers, gbps] = run_policy(ring, make_policy("pace")).iteration_s
        point = networked_at(profile, scenario)
        cluster = cluster_for(
            point,
            servers=servers,
            colocated=grid.colocated,
            worker_bytes_per_s=None if gbps is None else gbps * GBPS,
            round_trip_s=cluster_for(profile, servers=1).exchange.round_trip_s,
        )
        mode, ahead = read_staleness(staleness)
        first: float | None = None
        for policy in grid.policies:
            run = run_server_policy(
                point,
                cluster,
                make_policy(policy, "servers"),
                iterations=WINDOWS if grid.jitter else 1,
                jitter=grid.jitter,
                consistency=mode,
                staleness=ahead,
            )
            first = run.iteration_s if first is None else first
            cells.append(
                ServerCell(
                    servers=servers,
                    colocated=grid.colocated,
                    bandwidth_gbps=gbps,
                    workers=workers,
                    staleness=staleness,
                    policy=policy,
                    iteration_s=run.iteration_s,
                    allreduce_s=rings[workers, gbps],
                    speedup=first / run.iteration_s if run.iteration_s else 1.0,
                )
            )
        if progress is not None:
            progress(len(grid.policies))
    return ServerWhatIf(profile=profile.name, grid=grid, cells=tuple(cells))


def read_staleness(word: str) -> tuple[Consistency, int | None]:
    """Return the consistency and the staleness that a word means: "sync", "async" or a number of windows.

    Raises
    ------
    InvalidOptions
        If it is none of these.
    """
    if word == "async":
        return "async", None
    if word == "sync":
        return "sync", None
    if word.isdecimal() and int(word) <= MOST_STALENESS:
        return "sync", int(word)
    raise InvalidOptions(
        f'staleness "{word}": expected sync, async or a number of iterations, at most {MOST_STALENESS}'
    )
