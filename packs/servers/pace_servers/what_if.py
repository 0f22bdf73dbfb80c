"""What-ifs of parameter servers: how many, where, on which network, with how many workers, how consistent."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from pace.documents.cluster import Consistency
from pace.documents.options import JOB, NETWORK, For
from pace.documents.profile import Profile
from pace.errors import InvalidOptions
from pace.simulation import make_policy, run_policy
from pace.whatif.grid import AS_PROFILED, Many, Policies, PolicyGrid, Positive, Workers
from pace.whatif.results import to_csv
from pace.whatif.scenario import GBPS, Scenario, networked_at
from pace_servers.planning.clusters import cluster_for
from pace_servers.simulation.run import run_server_policy

# Windows of every point when op durations jitter: stale and late workers only show over several.
WINDOWS = 10
MOST_CELLS = 20_000
MOST_STALENESS = 1_000_000


class ServerGrid(PolicyGrid):
    """Axes of a what-if of servers; points with more colocated servers than workers are left out.

    Without jitter workers run in lock step, and staleness changes little.
    """

    exchange = "servers"

    servers: Annotated[tuple[Workers, ...], Field(min_length=1), Many, For(example="1,2,4")] = (1,)
    """Numbers of parameter servers."""

    colocated: Annotated[bool, For(panel="Parameter servers")] = False
    """Run the servers on the workers' hosts instead of on separate hosts."""

    policies: Annotated[Policies, For()] = ("fifo", "bytescheduler", "pace")
    """Policies to simulate."""

    workers: Annotated[tuple[Workers, ...], Many, For(unset=AS_PROFILED, example="8,16,32", panel=JOB)] = ()
    """Numbers of workers."""

    bandwidth_gbps: Annotated[
        tuple[Positive, ...], Many, For(unset=AS_PROFILED, example="1,5,10", panel=NETWORK)
    ] = ()
    """Link bandwidths in Gbit/s."""

    staleness: Annotated[tuple[str, ...], Field(min_length=1), Many, For(example="sync,3,async")] = ("sync",)
    """Numbers of iterations that a worker may be ahead of the slowest one (sync: 0, async: no limit)."""

    jitter: Annotated[float, Field(ge=0, le=10), For()] = 0.0
    """Standard deviation of random op durations, relative to their mean; 0 for fixed durations."""

    @model_validator(mode="after")
    def _known_staleness(self) -> Self:
        for word in self.staleness:
            read_staleness(word)
        return self


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
        return {"profile": self.profile, "grid": self.grid.model_dump(mode="json"), "cells": cells}

    def to_csv(self) -> str:
        """Return one line for each cell."""
        return to_csv([asdict(cell) for cell in self.cells])


def what_if_servers(
    profile: Profile, grid: ServerGrid, *, progress: Callable[[int], None] | None = None
) -> ServerWhatIf:
    """Simulate every point of the grid under every policy.

    Raises
    ------
    InvalidOptions
        If no point is left or there are too many, or the profile says nothing of a network.
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
