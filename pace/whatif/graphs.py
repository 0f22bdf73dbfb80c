"""What-ifs of graphs of sharded training: other ranks, bandwidths and memory budgets, under policies."""

from collections.abc import Callable
from itertools import product
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from pace.documents.base import ComputedDocument
from pace.documents.collective_costs import AffineAllReduce, SampledAllReduce
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.graph.nodes import OpCost
from pace.documents.options import JOB, NETWORK, For
from pace.errors import InvalidOptions
from pace.planning.lower_bound import lower_bound_s
from pace.simulation import make_policy
from pace.simulation.graph.run import run_graph_policy
from pace.simulation.registry import knobs_of
from pace.whatif.graph_ranks import MOST_RANKS, with_ranks
from pace.whatif.grid import Policies, PolicyGrid
from pace.whatif.results import to_csv

MOST_CELLS = 2000


# A bandwidth at which no cost overflows.
Factor = Annotated[float, Field(ge=1e-6, lt=1e6)]
Ranks = Annotated[int, Field(ge=2, le=MOST_RANKS)]
Gigabytes = Annotated[float, Field(gt=0, lt=1e6)]
Few = Field(max_length=MOST_CELLS)


class GraphGrid(PolicyGrid):
    """Axes of a what-if question about a graph of sharded training.

    ``pace.whatif.graph_ranks`` says what changes with the number of ranks. A bandwidth factor does not change
    latencies; the latency of a measured cost is the time of its fastest sample. Policies that cannot plan
    within a memory budget ignore it.
    """

    exchange = "graph"

    ranks: Annotated[
        tuple[Ranks, ...],
        Few,
        Field(exclude_if=lambda ranks: not ranks),
        For(unset="as in the graph", example="8,16,32", panel=JOB),
    ] = ()
    """Numbers of ranks that parameters are sharded over."""

    bandwidth_factor: Annotated[
        tuple[Factor, ...], Few, Field(min_length=1), For(example="0.5,1,2", panel=NETWORK)
    ] = (1.0,)
    """Factors that multiply all bandwidths."""

    memory_gb: Annotated[
        tuple[Gigabytes, ...], Few, For(unset="no limit", example="38,40,42", panel=JOB)
    ] = ()
    """Memory budgets in GB (10^9 bytes)."""

    policies: Annotated[Policies, For()] = ("fsdp2", "inductor", "pace")
    """Policies to simulate."""

    @model_validator(mode="after")
    def _few(self) -> Self:
        if self.num_cells > MOST_CELLS:
            raise ValueError(
                f"{self.num_cells:,} simulations; at most {MOST_CELLS:,} are allowed: give fewer values"
            )
        return self


class GraphCell(ComputedDocument):
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

    ranks: Annotated[int | None, Field(exclude_if=lambda ranks: ranks is None)] = None
    bandwidth_factor: float
    memory_gb: float | None
    policy: str
    iteration_s: float | None
    peak_bytes: int | None
    fits: bool
    lower_bound_s: float


class GraphWhatIf(ComputedDocument):
    """All cells, point by point."""

    graph: str
    grid: GraphGrid
    cells: tuple[GraphCell, ...]

    def to_document(self) -> dict[str, Any]:
        """Return what JSON holds."""
        return self.model_dump(mode="json")

    def to_csv(self) -> str:
        """Return one line for each cell."""
        return to_csv([cell.model_dump() for cell in self.cells])


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
        If the graph cannot have another number of ranks.
    """
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
