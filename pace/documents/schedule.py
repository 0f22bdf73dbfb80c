"""The schedule document: what the solver returns and the runtime follows."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, Protocol, Self

from pydantic import Field, ValidationError, model_validator

from pace.documents.base import Document, explain, repeated
from pace.documents.profile import ELEMENT_BYTES, DType, Name, Seconds
from pace.errors import InvalidSchedule

Bytes = Annotated[int, Field(ge=0, lt=2**63)]
Index = Annotated[int, Field(ge=0)]
# Left out where it is 0, so that documents without slow-down stay as they are.
Stretch = Annotated[Seconds, Field(exclude_if=lambda seconds: seconds == 0)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Target = Literal["pace", "ddp", "horovod"]
AskedTarget = Literal["pace", "allreduce", "sharded", "ddp", "horovod"]
Oracle = Literal["jackson", "lp"]
Fusion = Literal["optimal", "pace", "none"]


class SolverRecord(Document):
    """Which solver made the schedule, and how.

    Attributes
    ----------
    slot_s
        Length of a slot in seconds, null in continuous time.
    method
        The algorithm that chose the groups, in words, with "exact" or "heuristic".
    """

    version: str
    oracle: Oracle
    fusion: Fusion
    slot_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    method: str


class Prediction(Document):
    """Predicted times of one window, in seconds.

    Attributes
    ----------
    iteration_s
        With the segments as they are sent: each pays the latency, none is recalled.
    ideal_iteration_s
        With free preemption: the oracle's optimum for these groups.
    compute_s
        Without any all-reduce, so without anything that slows compute down.
    lower_bound_s
        No schedule of any fusion is faster.
    gap
        iteration_s / lower_bound_s - 1.
    scenarios_s
        Mean or 95th percentile over the sampled windows by which the plan was chosen; null without them.
    """

    iteration_s: Seconds
    ideal_iteration_s: Seconds
    compute_s: Seconds
    lower_bound_s: Seconds
    gap: Annotated[float, Field(allow_inf_nan=False)]
    scenarios_s: Seconds | None = None


class Certificate(Document):
    """A set of groups that proves ideal_iteration_s: their three numbers add up to it.

    No preemptive schedule of the groups ends before min_ready_s + total_allreduce_s + min_tail_s + stretch_s.

    Attributes
    ----------
    stretch_s
        How much longer compute takes because of the all-reduces of the other groups, which must overlap with
        it: (1 - 1 / compute_slowdown) of their time.
    """

    groups: tuple[Index, ...]
    min_ready_s: Seconds
    total_allreduce_s: Seconds
    min_tail_s: Seconds
    stretch_s: Stretch = 0.0
    bound_s: Seconds


class FusionBound(Document):
    """A set of gradients that proves lower_bound_s against every fusion.

    All gradients that are ready no earlier than min_ready_s and have a tail no shorter than
    min_tail_s: whatever carries their bytes is sent after min_ready_s, in at least one call, at no
    less than latency_s + bytes * seconds_per_byte.

    Attributes
    ----------
    stretch_s
        How much longer compute takes because of the bytes of all other gradients: (1 - 1 / compute_slowdown)
        times their seconds_per_byte.
    """

    min_ready_s: Seconds
    min_tail_s: Seconds
    num_gradients: Index
    total_bytes: Bytes
    latency_s: Seconds
    seconds_per_byte: Seconds
    stretch_s: Stretch = 0.0
    bound_s: Seconds


class ChainBound(Document):
    """A chain of gradients that proves lower_bound_s against every fusion.

    All gradients with bytes, in order of ready time with every tail lowered to the least of those that
    follow ("ready"), or in order of tail with every ready time lowered likewise ("tail"). On such a chain
    a group's ready time and tail are those of its last gradient, so no fusion is faster than the best
    one into contiguous groups, each call priced at latency_s + bytes * seconds_per_byte. Where traffic slows
    compute, that holds on the compute clock (``pace.solver.compute_clock``), and bound_s contains what one
    latency and all bytes stretch compute by.
    """

    order: Literal["ready", "tail"]
    latency_s: Seconds
    seconds_per_byte: Seconds
    bound_s: Seconds


class Execution(Document):
    """How the runtime sends: bytes in flight at once, and the largest segment."""

    credit_bytes: Bytes
    max_segment_bytes: Bytes


class Group(Document):
    """Gradients fused into one buffer, in the order in which they lie in it.

    `ready_s` and `tail_s` are compute alone, as if no traffic slowed it down.
    """

    gradients: Annotated[tuple[Name, ...], Field(min_length=1)]
    size_bytes: Bytes
    dtype: DType
    ready_s: Seconds
    tail_s: Seconds
    allreduce_s: Seconds


class Segment(Document):
    """A contiguous byte range of a group's buffer: one all-reduce call.

    Attributes
    ----------
    priority
        Smaller goes first: its place in the planned order, or the slot in which it starts.
    start_s, end_s
        Planned times on the network, from the window's start, in wall time.
    start_slot, num_slots
        The slotted oracle's plan; null in continuous time. An all-reduce that costs nothing has 0 slots.
    """

    group: Index
    offset_bytes: Bytes
    size_bytes: Annotated[int, Field(gt=0, lt=2**63)]
    priority: Index
    start_s: Seconds
    end_s: Seconds
    start_slot: Index | None = None
    num_slots: Index | None = None


class BufferDocument(Protocol):
    """A group of a schedule: whose gradients lie in one buffer."""

    @property
    def gradients(self) -> tuple[str, ...]:
        """Their names."""

    @property
    def size_bytes(self) -> int:
        """Of the buffer."""

    @property
    def dtype(self) -> DType:
        """Of its elements."""


class RangeDocument(Protocol):
    """A segment of a schedule: a range of a group's buffer."""

    @property
    def group(self) -> int:
        """The group's number."""

    @property
    def offset_bytes(self) -> int:
        """Where it begins."""

    @property
    def size_bytes(self) -> int:
        """Its length."""


def refuse_repeated(names: Iterable[str]) -> None:
    """Raise ValueError where a gradient is named twice."""
    if (twice := repeated(names)) is not None:
        raise ValueError(f'gradient "{twice}" is in two places')


def refuse_uncovered(what: str, parts: Iterable[tuple[int, int]], size: int, *, unit: str) -> None:
    """Raise ValueError unless parts, each an offset and a length, cover a buffer of `size` exactly once."""
    covered = 0
    for offset, length in sorted(parts):
        if offset != covered:
            at = min(offset, covered)
            raise ValueError(f"{what}: segments cover {unit} {at} twice or not at all")
        covered += length
    if covered != size:
        raise ValueError(f"{what}: segments cover {covered} {unit}s of {size}")


def refuse_gaps(groups: Sequence[BufferDocument], segments: Sequence[RangeDocument]) -> None:
    """Raise ValueError unless every gradient is in one place and every byte in one segment."""
    for number, group in enumerate(groups):
        if group.size_bytes % ELEMENT_BYTES[group.dtype]:
            raise ValueError(f"group {number}: {group.size_bytes} bytes cut an element of {group.dtype}")
    refuse_repeated(name for group in groups for name in group.gradients)
    ranges: list[list[tuple[int, int]]] = [[] for _ in groups]
    for number, segment in enumerate(segments):
        if segment.group >= len(groups):
            raise ValueError(f"segment {number} belongs to group {segment.group}, which is no group")
        element = ELEMENT_BYTES[groups[segment.group].dtype]
        if segment.offset_bytes % element or segment.size_bytes % element:
            raise ValueError(f"segment {number} of group {segment.group} cuts an element")
        ranges[segment.group].append((segment.offset_bytes, segment.size_bytes))
    for number, (group, parts) in enumerate(zip(groups, ranges, strict=True)):
        refuse_uncovered(f"group {number}", parts, group.size_bytes, unit="byte")


class Schedule(Document):
    """Fused groups, their segments in the order to be sent, predictions and proofs.

    Valid once built: segments cover every group's buffer exactly once and cut no element. Whether
    it fits a profile is for ``pace.check`` to say.
    """

    schema_version: Literal[1] = 1
    profile_sha256: Sha256
    fingerprint: Sha256
    target: Target = "pace"
    solver: SolverRecord
    predicted: Prediction
    certificate: Certificate
    bound: FusionBound
    chain_bound: ChainBound
    execution: Execution
    groups: tuple[Group, ...]
    segments: tuple[Segment, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse_gaps(self.groups, self.segments)
        return self

    def to_json(self) -> bytes:
        """Serialize; the same schedule always gives the same bytes."""
        return self.model_dump_json(indent=2).encode() + b"\n"


def parse_schedule(document: bytes | str) -> Schedule:
    """Read a schedule from JSON; raises InvalidSchedule with one line per fault."""
    try:
        return Schedule.model_validate_json(document, strict=True)
    except ValidationError as error:
        raise InvalidSchedule(explain(error)) from None


def load_schedule(path: str | Path) -> Schedule:
    """Read a schedule from a JSON file; raises InvalidSchedule and OSError."""
    try:
        return parse_schedule(Path(path).read_bytes())
    except InvalidSchedule as error:
        raise InvalidSchedule(f"{path}: {error}") from None
