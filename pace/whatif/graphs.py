"""What-ifs of graphs of sharded training: other ranks, bandwidths and memory budgets, under policies."""

import csv
import io
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from pace.documents.collective_costs import AffineAllReduce, SampledAllReduce
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.graph.nodes import OpCost
from pace.errors import InvalidOptions
from pace.planning.lower_bound import lower_bound_s
from pace.simulation import make_policy
from pace.simulation.graph.run import run_graph_policy
from pace.simulation.registry import knobs_of
from pace.whatif.graph_ranks import MOST_RANKS, with_ranks

MOST_CELLS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphGrid:
    """The questions: one point for every combination.

    Attributes
    ----------
    ranks
        Numbers of ranks that parameters are sharded over (``pace.whatif.graph_ranks``); empty for the graph's
        own number.
    bandwidth_factor
        How many times as fast every wire is. The latency stays: of a measured cost, that of its smallest
        sample.
    memory_gb
        Budgets for policies that plan within one, in GB (10^9 bytes); empty for no limit.
    """

    ranks: tuple[int, ...] = ()
    bandwidth_factor: tuple[float, ...] = (1.0,)
    memory_gb: tuple[float, ...] = ()
    policies: tuple[str, ...] = ("fsdp2", "inductor", "pace")

    def __post_init__(self) -> None:
        for number in self.ranks:
            if not 2 <= number <= MOST_RANKS:
                raise InvalidOptions(f"ranks {number}: expected 2 to {MOST_RANKS:,}")
        for name, values in (("bandwidth_factor", self.bandwidth_factor), ("memory_gb", self.memory_gb)):
            for value in values:
                if not 0 < value < 1e6:
                    raise InvalidOptions(f"{name} {value:g}: expected more than 0 and less than a million")
        if self.num_cells > MOST_CELLS:
            raise InvalidOptions(
                f"{self.num_cells:,} simulations; at most {MOST_CELLS:,} are allowed: give fewer values"
            )

    @property
    def num_cells(self) -> int:
        """Number of points times policies."""
        points = max(1, len(self.ranks)) * len(self.bandwidth_factor) * max(1, len(self.memory_gb))
        return points * len(self.policies)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCell:
    """One policy at one point.

    Attributes
    ----------
    ranks
        Number of ranks that parameters are sharded over; None for the graph's own.
    memory_gb
        The budget; None for no limit.
    iteration_s, peak_bytes
        None where no plan within the budget was found.
    fits
        Whether the peak is within the budget, which only planners see.
    lower_bound_s
        What no plan beats at this bandwidth, with any amount of memory.
    """

    ranks: int | None = None
    bandwidth_factor: float
    memory_gb: float | None
    policy: str
    iteration_s: float | None
    peak_bytes: int | None
    fits: bool
    lower_bound_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphWhatIf:
    """All cells, point by point."""

    graph: str
    grid: GraphGrid
    cells: tuple[GraphCell, ...]

    def to_document(self) -> dict[str, Any]:
        """Return what JSON holds."""
        return {
            "graph": self.graph,
            "grid": _without_ranks(asdict(self.grid)),
            "cells": [_without_ranks(asdict(cell)) for cell in self.cells],
        }

    def to_csv(self) -> str:
        """Return one line for each cell."""
        rows = [_without_ranks(asdict(cell)) for cell in self.cells]
        output = io.StringIO()
        writer = csv.DictWriter(output, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return output.getvalue()


def _without_ranks(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields without those of an axis that was not asked for."""
    return {name: value for name, value in fields.items() if name != "ranks" or value}


def what_if_graph(
    graph: CollectiveGraph, grid: GraphGrid, *, progress: Callable[[int], None] | None = None
) -> GraphWhatIf:
    """Simulate every point of the grid under every policy.

    Parameters
    ----------
    progress
        Called with the number of cells done since the last call.

    Raises
    ------
    InvalidOptions
        If a policy is unknown, or the graph cannot have another number of ranks.
    """
    for policy in grid.policies:
        make_policy(policy, "graph")
    graphs: list[tuple[int | None, CollectiveGraph]] = [(None, graph)]
    if grid.ranks:
        graphs = [(ranks, with_ranks(graph, ranks)) for ranks in grid.ranks]
    cells: list[GraphCell] = []
    for (ranks, resharded), factor in product(graphs, grid.bandwidth_factor):
        scaled = with_bandwidth(resharded, factor)
        bound = lower_bound_s(scaled)
        alike: dict[str, tuple[float, int]] = {}
        for memory, policy in product(grid.memory_gb or (None,), grid.policies):
            budget = None if memory is None else int(memory * 1e9)
            plans = "memory_bytes" in knobs_of(policy, "graph")
            found = alike.get(policy)
            if found is None:
                found = _simulated(scaled, policy, budget if plans else None)
                if not plans and found is not None:
                    alike[policy] = found
            cells.append(
                GraphCell(
                    ranks=ranks,
                    bandwidth_factor=factor,
                    memory_gb=memory,
                    policy=policy,
                    iteration_s=None if found is None else found[0],
                    peak_bytes=None if found is None else found[1],
                    fits=found is not None and (budget is None or found[1] <= budget),
                    lower_bound_s=bound,
                )
            )
            if progress is not None:
                progress(1)
    return GraphWhatIf(graph=graph.name, grid=grid, cells=tuple(cells))


def _simulated(graph: CollectiveGraph, policy: str, budget: int | None) -> tuple[float, int] | None:
    """Return the time and the peak; None if the planner finds nothing within its budget."""
    if budget is None:
        run = run_graph_policy(graph, make_policy(policy, "graph"))
    else:
        try:
            run = run_graph_policy(graph, make_policy(policy, "graph", memory_bytes=budget))
        except InvalidOptions:
            return None
    return run.iteration_s, run.memory.peak_bytes


def with_bandwidth(graph: CollectiveGraph, factor: float) -> CollectiveGraph:
    """Return a graph whose wires are `factor` times as fast, with the same latencies."""
    if factor == 1:
        return graph
    communicators = tuple(
        each.model_copy(update={"costs": tuple(_scaled(cost, factor) for cost in each.costs)})
        for each in graph.communicators
    )
    return graph.model_copy(update={"communicators": communicators})


def _scaled(cost: OpCost, factor: float) -> OpCost:
    if isinstance(cost.cost, AffineAllReduce):
        line = cost.cost.model_copy(update={"seconds_per_byte": cost.cost.seconds_per_byte / factor})
        return cost.model_copy(update={"cost": line})
    # Samples may be noisy: none is below the latency.
    latency = min(seconds for _, seconds in cost.cost.samples)
    samples = tuple((size, latency + (seconds - latency) / factor) for size, seconds in cost.cost.samples)
    return cost.model_copy(update={"cost": SampledAllReduce(samples=samples)})
