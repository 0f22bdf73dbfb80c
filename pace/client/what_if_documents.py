"""Documents of the HTTP interface for what-ifs; answers are as ``pace what-if --json`` prints them."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import Field

from pace.client.documents import PolicyName, ProfileQuestion, ResourceId
from pace.documents.base import ComputedDocument, Document
from pace.documents.collective_costs import Algorithm
from pace.documents.profile import Profile
from pace.documents.schedule import Sha256
from pace.errors import InvalidOptions
from pace.whatif import Answer, Cell, Grid, Scenario, WhatIf
from pace.whatif.grid import AXES, DEFAULT_POLICIES, MOST, MOST_WORKERS, SMALLEST
from pace.whatif.scenario import TwoLevel

MOST_VALUES = 10_000

Positive = Annotated[float, Field(ge=SMALLEST, le=MOST)]
NotNegative = Annotated[float, Field(ge=0, le=MOST)]
AtLeastOne = Annotated[float, Field(ge=1, le=MOST)]
Workers = Annotated[int, Field(ge=1, le=MOST_WORKERS)]
Efficiency = Annotated[float, Field(gt=0, le=1)]
Few = Field(max_length=20)
Many = Field(max_length=MOST_VALUES)


class TwoLevelDocument(Document):
    """The inside of a node, for the algorithm "two-level"."""

    workers_per_node: Workers
    intra_gbps: Positive
    intra_latency_s: NotNegative = 0.0


class GridDocument(Document):
    """Axes of a what-if; an empty axis keeps what was profiled. See ``pace.whatif.Grid``."""

    refused_as = InvalidOptions

    bandwidth_gbps: Annotated[tuple[Positive, ...], Many] = ()
    workers: Annotated[tuple[Workers, ...], Many] = ()
    algorithm: Annotated[tuple[Algorithm, ...], Few] = ()
    latency_s: Annotated[tuple[NotNegative, ...], Many] = ()
    compute_speedup: Annotated[tuple[Positive, ...], Many] = ()
    batch: Annotated[tuple[Positive, ...], Many] = ()
    compression: Annotated[tuple[AtLeastOne, ...], Many] = ()
    policies: Annotated[tuple[PolicyName, ...], Few] = DEFAULT_POLICIES
    baseline: PolicyName | None = None
    two_level: TwoLevelDocument | None = None

    def grid(self) -> Grid:
        """Return the library's grid; raises InvalidOptions."""
        two_level = None if self.two_level is None else TwoLevel(**self.two_level.model_dump())
        values = {name: getattr(self, name) for name in (*AXES, "policies", "baseline")}
        return Grid(two_level=two_level, **values)

    @classmethod
    def of(cls, grid: Grid) -> Self:
        """Return the document of a library's grid."""
        inside = grid.two_level
        two_level = None
        if inside is not None:
            two_level = TwoLevelDocument(
                workers_per_node=inside.workers_per_node,
                intra_gbps=inside.intra_gbps,
                intra_latency_s=inside.intra_latency_s,
            )
        values = {name: getattr(grid, name) for name in (*AXES, "policies", "baseline")}
        return cls(two_level=two_level, **values)


class WhatIfQuestion(Document):
    """Question about a profile: a grid, and an optional target.

    Attributes
    ----------
    target_efficiency
        Also find the bandwidth at which every policy reaches this scaling efficiency.
    """

    grid: GridDocument
    target_efficiency: Efficiency | None = None


class WhatIfRequest(WhatIfQuestion, ProfileQuestion):
    """Body of ``POST /v1/what-if``: a profile or the identifier of a stored one, and a question."""


class ScenarioDocument(ComputedDocument):
    """One point of the grid; null keeps what was profiled."""

    bandwidth_gbps: float | None
    latency_s: float | None
    workers: int | None
    algorithm: Algorithm | None
    compute_speedup: float
    batch: float | None
    compression: float


class CellDocument(ScenarioDocument):
    """One policy at one point; see ``pace.whatif.Cell``."""

    policy: str
    iteration_s: float
    compute_s: float
    throughput: float
    scaling_efficiency: float
    speedup: float
    gain_per_gbps: float | None


class TargetDocument(ComputedDocument):
    """The bandwidth at which a policy reaches the target efficiency; null if no bandwidth does."""

    latency_s: float | None
    workers: int | None
    algorithm: Algorithm | None
    compute_speedup: float
    batch: float | None
    compression: float
    policy: str
    target_efficiency: float
    bandwidth_gbps: float | None


class WhatIfDocument(Document):
    """The answer, as ``pace what-if --json`` prints it."""

    profile: str
    profile_sha256: Sha256
    workers: int
    baseline: str
    throughput_unit: str
    assumptions: tuple[str, ...]
    cells: tuple[CellDocument, ...]
    targets: tuple[TargetDocument, ...]

    def what_if(self, profile: Profile, grid: Grid) -> WhatIf:
        """Return the result as ``pace.whatif.what_if`` does."""
        first = grid.bandwidth_gbps[:1] or (None,)
        return WhatIf(
            profile=profile,
            grid=grid,
            cells=tuple(Cell(**_with_scenario(cell)) for cell in self.cells),
            answers=tuple(
                Answer(**_with_scenario(target, bandwidth_gbps=first[0])) for target in self.targets
            ),
        )


class WhatIfSummary(Document):
    """A stored what-if without its content.

    Attributes
    ----------
    id
        Derived from profile, question and version: equal requests give equal identifiers.
    """

    id: ResourceId
    profile_sha256: Sha256
    num_cells: int
    created_at: datetime


class WhatIfResource(WhatIfSummary):
    """A stored what-if."""

    what_if: WhatIfDocument


def _with_scenario(document: Document, **fixed: Any) -> dict[str, Any]:
    values = {name: getattr(document, name) for name in type(document).model_fields}
    axes: Iterable[str] = ScenarioDocument.model_fields
    scenario = {axis: fixed[axis] if axis in fixed else values.pop(axis) for axis in axes}
    return {"scenario": Scenario(**scenario), **values}
