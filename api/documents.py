"""What goes over the wire besides profiles and schedules. The client shares these: no FastAPI here."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pace.options import Options
from pace.profile import Profile
from pace.schedule import Schedule, Sha256

JobName = Annotated[str, Field(min_length=1, max_length=200)]
ResourceId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
TaskState = Literal["queued", "running", "done", "failed"]


class Document(BaseModel):
    """Base of all of these: unknown fields are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ScheduleRequest(Document):
    """Body of ``POST /v1/schedules``.

    Attributes
    ----------
    profile
        The profile to schedule.
    options
        Options of the optimiser; all have defaults.
    job
        Name of the training job, under which the schedule can be found again.
    """

    profile: Profile
    options: Options = Options()
    job: JobName | None = None


class ScheduleResource(Document):
    """A stored schedule.

    Attributes
    ----------
    id
        Follows from the profile, the options, the job and the solver's version: the same request
        always gives the same id.
    created_at
        When it was asked for first.
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
        Names the kind of problem; stable, for programs.
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
    """Work that the service does for a request, such as a solve.

    Attributes
    ----------
    location
        Where the result is once `state` is "done".
    problem
        Why it failed once `state` is "failed".
    """

    id: ResourceId
    state: TaskState
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    location: str | None = None
    problem: Problem | None = None


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
