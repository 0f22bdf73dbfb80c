"""Documents of the HTTP interface besides profiles and schedules, shared by the client and the service."""

import unicodedata
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from pace.documents.base import ComputedDocument, Document
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.schedule import Schedule, Sha256
from pace.whatif import Answer, Cell, Grid


def _in_one_form(name: str) -> str:
    if not unicodedata.is_normalized("NFC", name):
        raise ValueError("expected Unicode's composed form (NFC), so that no two names look alike")
    return name


# No control characters: PostgreSQL cannot store NUL, and no name needs the others. And not only spaces.
JobName = Annotated[
    str, Field(min_length=1, max_length=200, pattern=r"^ *[^\x00-\x20\x7f][^\x00-\x1f\x7f]*$")
]
# Names are stored in one Unicode form, so that no two look the same.
NewJobName = Annotated[JobName, AfterValidator(_in_one_form)]
ResourceId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PolicyName = Annotated[str, Field(min_length=1, max_length=50)]
KindName = Annotated[str, Field(pattern="^[a-z-]{1,10}$")]
TaskState = Literal["queued", "running", "done", "failed", "cancelled"]


class ProfileQuestion(Document):
    """Base of questions about a profile: exactly one of the profile and the identifier of a stored one."""

    profile: Profile | None = None
    profile_id: Sha256 | None = None

    @model_validator(mode="after")
    def _one_profile(self) -> Self:
        if (self.profile is None) == (self.profile_id is None):
            raise ValueError("give either profile or profile_id")
        return self


class ScheduleRequest(ProfileQuestion):
    """Body of ``POST /v1/schedules``.

    Attributes
    ----------
    options
        Options of the optimizer; all have defaults.
    job
        Name of the training job, under which the schedule can be found again.
    """

    options: Options = Options()
    job: NewJobName | None = None


class ProfileSummary(Document):
    """A stored profile without its content.

    Attributes
    ----------
    id
        SHA-256 of the profile: equal profiles have equal identifiers.
    size_bytes
        Length of its JSON.
    """

    id: Sha256
    name: str
    fingerprint: Sha256
    num_ops: int
    num_gradients: int
    size_bytes: int
    created_at: datetime


class ProfileResource(ProfileSummary):
    """A stored profile."""

    profile: Profile


class ProfilePage(Document):
    """Stored profiles, newest first; `next` is the cursor of the next page, if there is one."""

    items: tuple[ProfileSummary, ...]
    next: str | None


class ScheduleSummary(Document):
    """A stored schedule without its content.

    Attributes
    ----------
    asked_at
        Time of the last request for it.
    asked_by
        API key, or subject of the issuer's token, that sent the last request; null without keys.
    """

    id: ResourceId
    job: JobName | None
    fingerprint: Sha256
    profile_sha256: Sha256
    created_at: datetime
    asked_at: datetime
    asked_by: str | None


class ReportRequest(Document):
    """Body of ``POST /v1/reports``: iteration times that a job measured under a schedule.

    Attributes
    ----------
    predicted_iteration_s
        The schedule's ``predicted.iteration_s``.
    measured_iteration_s
        Median over `num_iterations`, on the slowest rank.
    plain_iteration_s
        Median iteration time without the schedule, if it was measured.
    """

    job: NewJobName
    fingerprint: Sha256
    profile_sha256: Sha256
    predicted_iteration_s: PositiveSeconds
    measured_iteration_s: PositiveSeconds
    plain_iteration_s: PositiveSeconds | None = None
    num_iterations: Annotated[int, Field(ge=1, lt=2**31)]


class ReportResource(ReportRequest):
    """A stored report."""

    job: JobName
    id: ResourceId
    created_at: datetime


class ReportPage(Document):
    """Reports, newest first; `next` is the cursor of the next page, if there is one."""

    items: tuple[ReportResource, ...]
    next: str | None


class ScheduleResource(Document):
    """A stored schedule.

    Attributes
    ----------
    id
        Derived from profile, options, job and solver version: equal requests give equal identifiers.
    created_at
        Time of the first request for it.
    schedule
        The schedule; its exchange is "servers" if the profile was measured with parameter servers.
    """

    id: ResourceId
    job: JobName | None
    fingerprint: Sha256
    profile_sha256: Sha256
    created_at: datetime
    schedule: Schedule


class Problem(BaseModel):
    """An RFC 9457 problem document.

    Attributes
    ----------
    type
        Kind of the problem; stable, for programs.
    detail
        What is wrong with this request, for people.
    """

    model_config = ConfigDict(frozen=True)

    type: str
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: str
    instance: str | None = None
    request_id: str | None = None


class TaskResource(Document):
    """Work of the service for a request, such as the solve of a schedule.

    Attributes
    ----------
    name
        The job, or the name of what it is about; null if that was deleted.
    location
        Path of the result, once `state` is "done".
    problem
        Why there is no result, once `state` is "failed" or "cancelled".
    num_done, num_total
        Progress: simulations of a what-if, points of a prediction, or policies of a fabric run; null for a
        solve.
    """

    id: ResourceId
    kind: KindName = "schedule"
    name: str | None = None
    state: TaskState
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    location: str | None = None
    problem: Problem | None = None
    num_done: int | None = None
    num_total: int | None = None


class TaskPage(Document):
    """Tasks, newest first; `next` is the cursor of the next page, if there is one."""

    items: tuple[TaskResource, ...]
    next: str | None


class SimulationRequest(Document):
    """Body of ``POST /v1/simulations``: policies to compare on a profile.

    Attributes
    ----------
    profile_id
        A stored profile.
    iterations, jitter, seed
        The options of ``pace.simulation.simulate``.
    """

    profile_id: Sha256
    policies: Annotated[tuple[PolicyName, ...], Field(min_length=1, max_length=20)]
    iterations: Annotated[int, Field(ge=1, le=1000)] = 1
    jitter: Annotated[float, Field(ge=0, le=10)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class PolicyResult(ComputedDocument):
    """Iteration times under one policy: the mean, and each one."""

    policy: str
    iteration_s: float
    iterations_s: tuple[float, ...]


class SimulationResult(Document):
    """Answer of ``POST /v1/simulations``, in the order of the request's policies."""

    profile_id: Sha256
    results: tuple[PolicyResult, ...]


class Readiness(Document):
    """Answer of ``GET /readyz``: "ok", or what is wrong, for each part."""

    ready: bool
    database: str
    workers: str
    objects: str = "ok"


class Health(Document):
    """Answer of ``GET /healthz``."""

    status: Literal["ok"] = "ok"
    version: str


def example_profile() -> dict[str, Any]:
    """Two layers: the profile that the documentation shows."""
    return {
        "schema_version": 1,
        "name": "two-layers",
        "workers": 4,
        "ops": [
            {"name": "bwd/2", "duration_s": 0.004, "stream": "compute"},
            {"name": "bwd/1", "duration_s": 0.004, "deps": ["bwd/2"], "stream": "compute"},
            {"name": "fwd/1", "duration_s": 0.002, "stream": "compute", "waits_for": ["1.weight"]},
            {
                "name": "fwd/2",
                "duration_s": 0.002,
                "deps": ["fwd/1"],
                "stream": "compute",
                "waits_for": ["2.weight"],
            },
        ],
        "gradients": [
            {"name": "2.weight", "size_bytes": 4_000_000, "dtype": "float32", "producer": "bwd/2"},
            {"name": "1.weight", "size_bytes": 1_000_000, "dtype": "float32", "producer": "bwd/1"},
        ],
        "allreduce": {"kind": "affine", "latency_s": 0.0003, "seconds_per_byte": 1e-9},
    }


class WhatIfRequest(ProfileQuestion):
    """Body of ``POST /v1/what-if``: a profile or the identifier of a stored one, and a grid."""

    grid: Grid


class WhatIfDocument(ComputedDocument):
    """The answer, as ``pace what-if --json`` prints it."""

    profile: str
    profile_sha256: Sha256
    workers: int
    baseline: str
    throughput_unit: str
    assumptions: tuple[str, ...]
    cells: tuple[Cell, ...]
    targets: tuple[Answer, ...]


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
