"""What the page exchanges with the service besides the documents of others: imports, windows, jobs, usage."""

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
    """What ``POST /v1/imports`` is told about the file in its body.

    Attributes
    ----------
    filename
        What the file is called in messages; its ending helps to tell the format.
    workers
        How many workers take part, where the file does not say.
    bandwidth_gbps, latency_s
        A ring of this bandwidth and latency is the cost of all-reduces; needed where the file records none.
    name
        The profile's name; from the file's by default.
    """

    format: AskedImportFormat = "auto"
    filename: Annotated[str, Field(min_length=1, max_length=200)] = "file"
    workers: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    bandwidth_gbps: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    latency_s: Annotated[float, Field(ge=0, le=1e3, allow_inf_nan=False)] = 0.0
    name: JobName | None = None


class ImportResource(ProfileSummary):
    """The profile that was made from a file, as it is stored, and what the importer found.

    Attributes
    ----------
    format
        What the file was read as.
    report
        As ``pace import kineto --json`` prints it.
    warnings
        What was left out, and what an answer from this profile cannot be trusted in.
    """

    format: ImportFormat
    report: dict[str, Any]
    warnings: tuple[str, ...]


class WindowRequest(Document):
    """Body of ``POST /v1/simulations/windows``: whose windows to lay out in time.

    Attributes
    ----------
    profile_id
        A stored profile.
    schedule_id
        A stored schedule of this profile, to be laid out first.
    policies
        Each is simulated.
    """

    profile_id: Sha256
    schedule_id: ResourceId | None = None
    policies: Annotated[tuple[PolicyName, ...], Field(max_length=12)] = ()


class WindowGroup(Document):
    """What one or several transfers carry; `critical` if it is in the schedule's certificate."""

    name: str
    gradients: tuple[str, ...]
    size_bytes: int
    critical: bool = False


class WindowRow(Document):
    """One window, laid out in time: arrays over the profile's ops, and arrays over transfers.

    Attributes
    ----------
    name
        The policy's; "schedule" for the schedule.
    lanes, links
        Names of the rows of ops, and of those of transfers.
    op_lanes, op_starts_s, op_ends_s
        For every op, its lane and its times from the window's start, in seconds.
    groups
        What transfers carry.
    transfer_links, transfer_groups, transfer_bytes, transfer_starts_s, transfer_ends_s
        For every transfer.
    barrier
        Whether forward ops wait for all gradients.
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


class WindowResult(Document):
    """Answer of ``POST /v1/simulations/windows``.

    Attributes
    ----------
    op_names, op_phases
        For every op; the phase is "backward" (it waits for no gradient), "forward" (it waits, or follows one
        that does) or "collective" (no schedule moves it).
    bandwidth_gbps, latency_s
        Of the cost, where it has one number for each.
    recorded_s
        The step that a trace recorded.
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
    op_names: tuple[str, ...]
    op_phases: tuple[Literal["backward", "forward", "collective"], ...]
    rows: tuple[WindowRow, ...]


class JobSummary(Document):
    """A training job, by the name under which schedules are asked for.

    Attributes
    ----------
    asked_at
        When a schedule was asked for last; `asked_by` is the id of the key, or whom the token names.
    predicted_iteration_s, measured_iteration_s, plain_iteration_s, reported_at
        Of the job's newest report, if it sent one.
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
    """Jobs in the order that was asked for; `next` is the cursor of the next page, if there is one."""

    items: tuple[JobSummary, ...]
    next: str | None


class UsageResource(Document):
    """Who asks, what that may do, and what the tenant has in use.

    Attributes
    ----------
    key_id, subject
        The API key, or whom the issuer's token names; null without keys.
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
