"""The schedule document of two halves: version 3, reduce-scatters, updates of shards and all-gathers."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from pace.documents.base import Document, explain
from pace.documents.profile import ELEMENT_BYTES, DType, Name, Seconds, UpdateRule
from pace.documents.schedule import (
    Bytes,
    ChainBound,
    Execution,
    Fusion,
    FusionBound,
    Index,
    Prediction,
    Sha256,
    Stretch,
    refuse_repeated,
    refuse_uncovered,
)
from pace.errors import InvalidSchedule

HalfName = Literal["reduce-scatter", "all-gather"]


class ShardedSolver(Document):
    """Which solver made the plan, and how: the algorithm in words, with "exact" or "heuristic"."""

    version: str
    fusion: Fusion
    method: str


class ShardGroup(Document):
    """Gradients that share both calls, one behind the other in a matrix with a row for each rank.

    Attributes
    ----------
    num_columns
        Elements of a row: those of all gradients, padded at the end to a multiple of the workers.
    """

    gradients: Annotated[tuple[Name, ...], Field(min_length=1)]
    dtype: DType
    num_columns: Index


class HalfCall(Document):
    """One half of an exchange: shards whose matrices lie side by side in one buffer.

    Attributes
    ----------
    shards
        Their numbers, in the order in which they lie in the buffer.
    size_bytes
        Of the whole buffer, all rows and the padding.
    time_s
        A reduce-scatter's ready time; an all-gather's tail.
    duration_s
        Sent in one piece, in wall time.
    """

    shards: Annotated[tuple[Index, ...], Field(min_length=1)]
    size_bytes: Bytes
    time_s: Seconds
    duration_s: Seconds


class HalfSegment(Document):
    """A range of columns of a call's buffer: one reduce-scatter or all-gather on the network.

    Attributes
    ----------
    priority
        Its place in the planned order.
    start_s, end_s
        Planned times on the network, from the window's start.
    """

    half: HalfName
    call: Index
    first_column: Index
    num_columns: Annotated[int, Field(gt=0, lt=2**63)]
    priority: Index
    start_s: Seconds
    end_s: Seconds


class NormExchange(Document):
    """When ranks exchange the number on which every update waits, behind the last reduce-scatter."""

    start_s: Seconds
    end_s: Seconds


class HalvesCertificate(Document):
    """Calls that prove ideal_iteration_s: no preemptive plan of these calls ends before their sum.

    With a norm: reduce-scatters that are all ready no earlier than min_ready_s, the norm behind them, and
    all-gathers with tails of at least min_tail_s behind the norm. Without one: calls of both halves, where
    a gather's ready time is the latest end of what it needs if nothing else were sent, and a reduce-scatter's
    tail the longest of a gather that needs it with what follows the gather; durations inside these count as
    on the compute clock. `stretch_s` is how much longer compute takes because of all other calls:
    (1 - 1 / compute_slowdown) of their time.
    """

    reduce_scatters: tuple[Index, ...]
    all_gathers: tuple[Index, ...]
    min_ready_s: Seconds
    total_reduce_scatter_s: Seconds
    norm_s: Seconds
    total_all_gather_s: Seconds
    min_tail_s: Seconds
    stretch_s: Stretch = 0.0
    bound_s: Seconds


class NormBound(Document):
    """What proves lower_bound_s against every plan with a norm: the sum of three parts.

    No calls sum all gradients before the first chain's bound, in order of ready time and with tails of 0;
    the norm follows; after it no calls gather them all, and compute what waits for them, within the second
    chain's bound, in order of tail and with ready times of 0.
    """

    reduce_scatter: ChainBound
    norm_s: Seconds
    all_gather: ChainBound
    bound_s: Seconds


class ShardedSchedule(Document):
    """Reduce-scatters, all-gathers and their segments in the order to be sent, predictions and proofs.

    Valid once built: every shard with bytes is in one call of each half, segments cover every buffer exactly
    once, and places in the order are distinct. Whether it fits a profile is for ``pace.check`` to say.

    Attributes
    ----------
    norm
        None where updates wait for their own gradients only.
    norm_bound, set_bound
        The proof against every plan, with a norm and without: without one, the reduce-scatters and gathers
        of a set of gradients, with one latency and one time per byte for both halves together.
    """

    schema_version: Literal[3] = 3
    exchange: Literal["two-halves"] = "two-halves"
    profile_sha256: Sha256
    fingerprint: Sha256
    workers: Annotated[int, Field(ge=1)]
    update: UpdateRule
    solver: ShardedSolver
    predicted: Prediction
    certificate: HalvesCertificate
    norm_bound: NormBound | None = None
    set_bound: FusionBound | None = None
    execution: Execution
    shards: tuple[ShardGroup, ...]
    reduce_scatters: tuple[HalfCall, ...]
    norm: NormExchange | None = None
    all_gathers: tuple[HalfCall, ...]
    segments: tuple[HalfSegment, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse_repeated(name for shard in self.shards for name in shard.gradients)
        for half, calls in self.calls.items():
            self._refuse_misplaced(half, calls)
            self._refuse_gaps(half, calls)
        priorities = [segment.priority for segment in self.segments]
        if len(set(priorities)) < len(priorities):
            raise ValueError("two segments have the same priority")
        return self

    @property
    def calls(self) -> dict[HalfName, tuple[HalfCall, ...]]:
        """The calls of each half."""
        return {"reduce-scatter": self.reduce_scatters, "all-gather": self.all_gathers}

    def columns_of(self, call: HalfCall) -> int:
        """Return how many columns a call's buffer has."""
        return sum(self.shards[number].num_columns for number in call.shards)

    def column_bytes_of(self, call: HalfCall) -> int:
        """Return the bytes of one column of a call's buffer: an element for every rank."""
        return self.workers * ELEMENT_BYTES[self.shards[call.shards[0]].dtype]

    def _refuse_misplaced(self, half: HalfName, calls: Sequence[HalfCall]) -> None:
        placed: set[int] = set()
        for number, call in enumerate(calls):
            for shard in call.shards:
                if shard >= len(self.shards):
                    raise ValueError(f"{half} {number}: {shard} is no shard")
                if shard in placed:
                    raise ValueError(f"{half} {number}: shard {shard} is in two places")
                placed.add(shard)
            dtypes = {self.shards[shard].dtype for shard in call.shards}
            if len(dtypes) > 1:
                raise ValueError(f"{half} {number}: its shards are {', '.join(sorted(dtypes))}")
            expected = self.columns_of(call) * self.column_bytes_of(call)
            if call.size_bytes != expected:
                raise ValueError(
                    f"{half} {number}: size_bytes is {call.size_bytes}, its shards have {expected}"
                )
        for number, group in enumerate(self.shards):
            if (number in placed) != (group.num_columns > 0):
                raise ValueError(
                    f"{half}: shard {number} of {group.num_columns} columns is in no call or one"
                )

    def _refuse_gaps(self, half: HalfName, calls: Sequence[HalfCall]) -> None:
        ranges: list[list[tuple[int, int]]] = [[] for _ in calls]
        for number, segment in enumerate(self.segments):
            if segment.half != half:
                continue
            if segment.call >= len(calls):
                raise ValueError(f"segment {number} belongs to {half} {segment.call}, which there is not")
            ranges[segment.call].append((segment.first_column, segment.num_columns))
        for number, (call, parts) in enumerate(zip(calls, ranges, strict=True)):
            refuse_uncovered(f"{half} {number}", parts, self.columns_of(call), unit="column")

    def to_json(self) -> bytes:
        """Serialize; the same schedule always gives the same bytes."""
        return self.model_dump_json(indent=2).encode() + b"\n"


def parse_sharded_schedule(document: bytes | str) -> ShardedSchedule:
    """Read a schedule of two halves from JSON; raises InvalidSchedule with one line per fault."""
    try:
        return ShardedSchedule.model_validate_json(document, strict=True)
    except ValidationError as error:
        raise InvalidSchedule(explain(error)) from None
