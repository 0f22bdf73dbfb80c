"""Documents of the HTTP interface for imports, windows, jobs and usage."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from pace.client.documents import JobName, PolicyName, ProfileSummary, ResourceId
from pace.client.key_documents import KeyScope
from pace.documents.base import Document
from pace.documents.schedule import Sha256

ImportFormat = Literal["profile", "kineto", "layers", "pipedream", "chakra", "horovod-timeline"]
AskedImportFormat = Literal["auto", "profile", "kineto", "layers", "pipedream", "chakra", "horovod-timeline"]


class ImportQuestion(Document):
    """Query of ``POST /v1/imports``: facts about the file in its body.

    Attributes
    ----------
    filename
        Name of the file in messages; its ending helps to recognize the format.
    workers
        Number of workers, if the file does not hold it.
    bandwidth_gbps, latency_s
        Bandwidth and latency of a ring, whose all-reduce cost is used; needed if the file holds no cost.
    name
        Name of the profile; default: the file's name.
    """

    format: Annotated[AskedImportFormat, Field(description="Format of the file")] = "auto"
    filename: Annotated[
        str,
        Field(
            min_length=1,
            max_length=200,
            description="Name of the file, used in messages and to recognize the format",
        ),
    ] = "file"
    workers: Annotated[
        int | None, Field(ge=1, le=10_000_000, description="Number of workers, if the file does not hold it")
    ] = None
    bandwidth_gbps: Annotated[
        float | None,
        Field(
            gt=0,
            le=1e6,
            allow_inf_nan=False,
            description="Link bandwidth of a ring all-reduce in Gbit/s, if the file holds no cost",
        ),
    ] = None
    latency_s: Annotated[
        float, Field(ge=0, le=1e3, allow_inf_nan=False, description="Latency of one message in seconds")
    ] = 0.0
    name: Annotated[JobName | None, Field(description="Name of the profile; default: the file's name")] = None


class ImportResource(ProfileSummary):
    """The stored profile of an imported file, and the importer's report.

    Attributes
    ----------
    format
        Format as which the file was read.
    report
        The report that ``pace import kineto --json`` prints.
    warnings
        What was left out of the profile, and which predictions of it are unreliable.
    """

    format: ImportFormat
    report: dict[str, Any]
    warnings: tuple[str, ...]


class WindowRequest(Document):
    """Body of ``POST /v1/simulations/windows``: the schedule and policies whose times are returned.

    Attributes
    ----------
    profile_id
        A stored profile.
    schedule_id
        A stored schedule of this profile; its times come first.
    policies
        Policies to simulate.
    """

    profile_id: Sha256
    schedule_id: ResourceId | None = None
    policies: Annotated[tuple[PolicyName, ...], Field(max_length=12)] = ()


class WindowGroup(Document):
    """A group of gradients in one or several transfers; `critical` if the schedule's proof contains it."""

    name: str
    gradients: tuple[str, ...]
    size_bytes: int
    critical: bool = False


class WindowMemory(Document):
    """Memory in use: bytes from each time on; `budget_bytes` is null without a budget."""

    starts_s: tuple[float, ...]
    in_use_bytes: tuple[int, ...]
    budget_bytes: int | None


def _is_empty(value: object) -> bool:
    return not value


class WindowRow(Document):
    """Times of one iteration: arrays over the profile's ops, and arrays over transfers.

    Attributes
    ----------
    name
        Name of the policy; "schedule" for the schedule.
    lanes, links
        Names of the rows with ops, and of the rows with transfers.
    op_lanes, op_starts_s, op_ends_s
        For every op, its lane and its times from the iteration's start, in seconds.
    groups
        Groups of gradients that transfers carry.
    transfer_links, transfer_groups, transfer_bytes, transfer_starts_s, transfer_ends_s
        For every transfer, its link, group, size and times.
    barrier
        Whether forward ops wait for all gradients.
    op_phases
        For every op, if the row has its own ops: "compute", or "copy" into and out of buckets.
    memory
        Memory in use over time, for graphs.
    """

    name: str
    iteration_s: float
    barrier: bool
    lanes: tuple[str, ...]
    op_lanes: tuple[int, ...]
    op_starts_s: tuple[float, ...]
    op_ends_s: tuple[float, ...]
    links: tuple[str, ...]
    groups: tuple[WindowGroup, ...]
    transfer_links: tuple[int, ...]
    transfer_groups: tuple[int, ...]
    transfer_bytes: tuple[int, ...]
    transfer_starts_s: tuple[float, ...]
    transfer_ends_s: tuple[float, ...]
    op_phases: Annotated[tuple[Literal["compute", "copy"], ...], Field(exclude_if=_is_empty)] = ()
    memory: Annotated[WindowMemory | None, Field(exclude_if=_is_empty)] = None


class WindowResult(Document):
    """Answer of ``POST /v1/simulations/windows``.

    Attributes
    ----------
    op_names, op_phases
        For every op; the phase is "backward" (it waits for no gradient), "forward" (it waits, or follows one
        that does) or "collective" (no schedule moves it).
    bandwidth_gbps, latency_s
        Bandwidth and latency of the cost, if it has one number for each.
    recorded_s
        Duration of the step that a trace recorded, in seconds.
    batch, batch_unit
        Samples that all workers process in an iteration, and what they are (images, tokens); null if the
        profile has no batch.
    """

    profile_id: Sha256
    name: str
    workers: int
    update: str
    cost: str
    bandwidth_gbps: float | None
    latency_s: float | None
    compute_s: float
    recorded_s: float | None
    batch: float | None = None
    batch_unit: str | None = None
    op_names: tuple[str, ...]
    op_phases: tuple[Literal["backward", "forward", "collective"], ...]
    rows: tuple[WindowRow, ...]


class JobSummary(Document):
    """A training job, by its name in requests for schedules.

    Attributes
    ----------
    asked_at
        Time of the last request for a schedule.
    asked_by
        API key, or subject of the issuer's token, that sent the last request; null without keys.
    predicted_iteration_s, measured_iteration_s, plain_iteration_s, reported_at
        Values of the job's newest report, if it sent one.
    """

    job: JobName
    num_schedules: int
    num_models: int
    first_at: datetime
    asked_at: datetime
    asked_by: str | None
    predicted_iteration_s: float | None
    measured_iteration_s: float | None
    plain_iteration_s: float | None
    reported_at: datetime | None


class JobPage(Document):
    """Jobs in the requested order; `next` is the cursor of the next page, if there is one."""

    items: tuple[JobSummary, ...]
    next: str | None


class UsageResource(Document):
    """The caller, its scopes, and the tenant's usage and limits.

    Attributes
    ----------
    key_id, subject
        Identifier of the API key, or the subject of the issuer's token; null without keys.
    max_stored_bytes
        0 for no limit.
    """

    tenant: str
    scopes: tuple[KeyScope, ...]
    key_id: str | None
    subject: str | None
    stored_bytes: int
    max_stored_bytes: int
    num_queued: int
    max_queued: int
    num_running: int
    max_running: int
    max_body_bytes: int
    version: str
