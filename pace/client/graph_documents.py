"""Documents of the HTTP interface for graphs of sharded training: schedules, windows and what-ifs."""

from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import Field

from pace.client.documents import PolicyName, ResourceId
from pace.client.page_documents import WindowRow
from pace.documents.base import ComputedDocument, Document
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.profile import Name
from pace.documents.schedule import Schedule, Sha256
from pace.errors import InvalidOptions
from pace.whatif.graph_ranks import MOST_RANKS
from pace.whatif.graphs import GraphCell, GraphGrid, GraphWhatIf

MemoryBudget = Annotated[int, Field(gt=0, lt=2**63)]
# A bandwidth at which no cost overflows.
Factor = Annotated[float, Field(ge=1e-6, lt=1e6)]
Ranks = Annotated[int, Field(ge=2, le=MOST_RANKS)]
Gigabytes = Annotated[float, Field(gt=0, lt=1e6)]


class GraphScheduleRequest(Document):
    """Body of ``POST /v1/graph-schedules``.

    Attributes
    ----------
    memory_bytes
        Largest peak memory in bytes; null for no limit.
    """

    graph: CollectiveGraph
    memory_bytes: MemoryBudget | None = None


class GraphScheduleSummary(Document):
    """A stored schedule of a graph without its content; `id` follows from graph, budget and version."""

    id: ResourceId
    name: Name
    graph_sha256: Sha256
    created_at: datetime


class GraphScheduleResource(GraphScheduleSummary):
    """A stored schedule of a graph, as ``pace optimize GRAPH --json`` prints it."""

    schedule: Schedule


class GraphWindowRequest(Document):
    """Body of ``POST /v1/simulations/graph-windows``.

    Attributes
    ----------
    schedule_id
        A stored schedule of a graph; its times come first.
    policies
        Policies to simulate on the same graph.
    """

    schedule_id: ResourceId
    policies: Annotated[tuple[PolicyName, ...], Field(max_length=8)] = ()


class GraphWindowResult(ComputedDocument):
    """Answer of ``POST /v1/simulations/graph-windows``: rows as in ``POST /v1/simulations/windows``.

    Each row has its own `op_phases`, and the memory in use over time. Neighboring ops of the same phase are
    shown as one.
    """

    graph_sha256: Sha256
    name: Name
    compute_s: float
    num_nodes: int
    num_collectives: int
    rows: tuple[WindowRow, ...]


class GraphGridDocument(Document):
    """Axes of a graph's what-if. See ``pace.whatif.graphs.GraphGrid``."""

    refused_as = InvalidOptions

    ranks: Annotated[tuple[Ranks, ...], Field(max_length=200, exclude_if=lambda ranks: not ranks)] = ()
    bandwidth_factor: Annotated[tuple[Factor, ...], Field(min_length=1, max_length=200)] = (1.0,)
    memory_gb: Annotated[tuple[Gigabytes, ...], Field(max_length=200)] = ()
    policies: Annotated[tuple[PolicyName, ...], Field(min_length=1, max_length=8)] = (
        "fsdp2",
        "inductor",
        "pace",
    )

    def grid(self) -> GraphGrid:
        """Return the library's grid; raises InvalidOptions."""
        return GraphGrid(**{name: getattr(self, name) for name in type(self).model_fields})

    @classmethod
    def of(cls, grid: GraphGrid) -> Self:
        """Return the document of a library's grid; raises InvalidOptions for values that no service takes."""
        return cls(**{name: getattr(grid, name) for name in cls.model_fields})


class GraphWhatIfRequest(Document):
    """Body of ``POST /v1/graph-what-if``."""

    graph: CollectiveGraph
    grid: GraphGridDocument = GraphGridDocument()


class GraphCellDocument(ComputedDocument):
    """One policy at one point. See ``pace.whatif.graphs.GraphCell``."""

    ranks: Annotated[int | None, Field(exclude_if=lambda ranks: ranks is None)] = None
    bandwidth_factor: float
    memory_gb: float | None
    policy: str
    iteration_s: float | None
    peak_bytes: int | None
    fits: bool
    lower_bound_s: float


class GraphWhatIfResult(Document):
    """All cells, point by point, as ``pace what-if GRAPH --json`` prints them."""

    graph: str
    grid: GraphGridDocument
    cells: tuple[GraphCellDocument, ...]

    @classmethod
    def of(cls, result: GraphWhatIf) -> "GraphWhatIfResult":
        """Return the document of a library's answer."""
        document: dict[str, Any] = result.to_document()
        return cls.model_validate(document)

    def what_if(self) -> GraphWhatIf:
        """Return the library's answer."""
        cells = (
            GraphCell(**{name: getattr(cell, name) for name in type(cell).model_fields})
            for cell in self.cells
        )
        return GraphWhatIf(graph=self.graph, grid=self.grid.grid(), cells=tuple(cells))


class GraphWhatIfSummary(Document):
    """A stored what-if of a graph without its content."""

    id: ResourceId
    name: Name
    graph_sha256: Sha256
    num_cells: int
    created_at: datetime


class GraphWhatIfResource(GraphWhatIfSummary):
    """A stored what-if of a graph."""

    what_if: GraphWhatIfResult
