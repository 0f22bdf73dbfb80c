"""Documents of the HTTP interface for imports, windows, jobs, API keys, usage and order checks."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, Field

from pace.client.documents import JobName, PolicyName, ProfileSummary, ResourceId
from pace.documents.base import ComputedDocument, Document
from pace.documents.order.job_program import JobProgram
from pace.documents.order.order_report import OrderReport, StreamRule
from pace.documents.profile import Name
from pace.documents.schedule import Sha256

KeyId = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
KeyScope = Literal["read", "submit", "admin"]


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("expected a time that UTC can express") from None


class KeyRequest(Document):
    """Body of ``POST /v1/keys``.

    Attributes
    ----------
    name
        Name of the key, for people.
    expires_at
        Time at which the key becomes invalid, with a time zone; null for never.
    """

    name: JobName
    scopes: Annotated[tuple[KeyScope, ...], Field(min_length=1, max_length=3)] = ("read", "submit")
    expires_at: Annotated[AwareDatetime, AfterValidator(_in_utc)] | None = None


class KeyResource(Document):
    """An API key without its secret.

    Attributes
    ----------
    last_used_at
        Time of the last use, to about a minute; null if no use was recorded.
    """

    id: KeyId
    name: str
    scopes: tuple[KeyScope, ...]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class CreatedKey(KeyResource):
    """A new key with its token, which is shown only once."""

    token: str


class KeyPage(Document):
    """Keys, newest first; `next` is the cursor of the next page, if there is one."""

    items: tuple[KeyResource, ...]
    next: str | None


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


class WindowGroup(ComputedDocument):
    """A group of gradients in one or several transfers; `critical` if the schedule's proof contains it."""

    name: str
    gradients: tuple[str, ...]
    size_bytes: int
    critical: bool = False


class WindowMemory(ComputedDocument):
    """Memory in use: bytes from each time on; `budget_bytes` is null without a budget."""

    starts_s: tuple[float, ...]
    in_use_bytes: tuple[int, ...]
    budget_bytes: int | None


def _is_empty(value: object) -> bool:
    return not value


class WindowRow(ComputedDocument):
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


class WindowResult(ComputedDocument):
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


class OrderCheckRequest(Document):
    """Body of ``POST /v1/order-checks``: what every rank enqueues, and how devices run it."""

    program: JobProgram
    streams: StreamRule = "side-by-side"
    launch_slots: Annotated[int, Field(ge=1)] | None = None


class OrderCheckSummary(Document):
    """A stored order check without its report; `id` follows from program, options and version."""

    id: ResourceId
    name: Name
    program_sha256: Sha256
    created_at: datetime


class OrderCheckResource(OrderCheckSummary):
    """A stored order check, as ``pace check-order --json`` prints it."""

    report: OrderReport
