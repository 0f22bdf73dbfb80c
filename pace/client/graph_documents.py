"""Documents of the HTTP interface for graphs of sharded training: schedules, windows and what-ifs."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from pace.client.documents import PolicyName, ResourceId
from pace.client.page_documents import WindowRow
from pace.documents.base import ComputedDocument, Document
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.profile import Name
from pace.documents.schedule import Schedule, Sha256
from pace.whatif.graphs import GraphGrid, GraphWhatIf

MemoryBudget = Annotated[int, Field(gt=0, lt=2**63)]


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


class GraphWhatIfRequest(Document):
    """Body of ``POST /v1/graph-what-if``."""

    graph: CollectiveGraph
    grid: GraphGrid = GraphGrid()


class GraphWhatIfSummary(Document):
    """A stored what-if of a graph without its content."""

    id: ResourceId
    name: Name
    graph_sha256: Sha256
    num_cells: int
    created_at: datetime


class GraphWhatIfResource(GraphWhatIfSummary):
    """A stored what-if of a graph."""

    what_if: GraphWhatIf
