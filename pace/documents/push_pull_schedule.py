"""The schedule document of push and pull: version 2, for plans that name a server for every segment."""

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from pace.documents.base import Document, explain
from pace.documents.cluster import Cluster
from pace.documents.profile import DType, Name, Seconds
from pace.documents.schedule import (
    Bytes,
    ChainBound,
    Fusion,
    Index,
    Prediction,
    Sha256,
    refuse_gaps,
)
from pace.errors import InvalidSchedule

SendOrder = Literal["overtake", "static"]


class ExchangeSolver(Document):
    """Which solver made the plan, and how.

    Attributes
    ----------
    method
        The algorithm that chose the groups, in words, with "exact" or "heuristic".
    order
        The rule that gave the segments their positions.
    partition_bytes
        Most bytes of a segment, except that a rest below the cluster's ``min_partition_bytes`` goes with the
        segment before it; `suggested_partition_bytes` is delta0 = sqrt(M theta B / (2 S)), where the
        search for it began.
    """

    version: str
    fusion: Fusion
    method: str
    order: Literal["longest tail", "johnson", "insertion"]
    partition_bytes: Bytes
    suggested_partition_bytes: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class LinkCertificate(Document):
    """A set of segments whose three numbers bound every order of these segments from below.

    All segments with a ready time of at least min_ready_s and a tail of at least min_tail_s on the link. On
    a worker's uplink ("up") and on a server's ("server") a segment's tail is its group's, the round trip
    and its own pull; on the downlink ("down") its ready time is its group's, its own push and the round
    trip. Where servers share the workers' hosts, "up" carries pushes and pulls, and tails are the groups'.
    """

    link: Literal["up", "down", "server"]
    server: Index | None = None
    num_segments: Index
    min_ready_s: Seconds
    total_transfer_s: Seconds
    min_tail_s: Seconds
    bound_s: Seconds


class ExchangeBound(Document):
    """A set of gradients that proves lower_bound_s against every fusion, partition and order.

    All gradients that are ready no earlier than min_ready_s and have a tail no shorter than min_tail_s: their
    bytes cross the link after min_ready_s in at least one part, which loses `lost_s`, and the last of
    them is back no sooner than `latency_s` later.
    """

    link: Literal["up", "down"]
    min_ready_s: Seconds
    min_tail_s: Seconds
    num_gradients: Index
    total_bytes: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    lost_s: Seconds
    latency_s: Seconds
    seconds_per_byte: Seconds
    bound_s: Seconds


class ExchangeExecution(Document):
    """How the runtime sends.

    Attributes
    ----------
    order
        "overtake": a connection with room takes the waiting segment that is planned first; "static": it
        waits for the one that is planned next.
    max_segment_bytes
        The largest segment; each connection carries one at a time.
    pace_bytes_per_s
        At which each connection is paced; null where pacing gains nothing.
    """

    order: SendOrder = "overtake"
    max_segment_bytes: Bytes
    pace_bytes_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class ExchangeGroup(Document):
    """Gradients fused into one buffer, in the order in which they lie in it."""

    gradients: Annotated[tuple[Name, ...], Field(min_length=1)]
    size_bytes: Bytes
    dtype: DType
    ready_s: Seconds
    tail_s: Seconds


class ExchangeSegment(Document):
    """A contiguous byte range of a group's buffer: one push and one pull.

    Attributes
    ----------
    link
        The server that it is placed on: which of a worker's connections carries it.
    priority
        Its place in the planned order: smaller goes first.
    push_start_s, push_end_s, pull_start_s, pull_end_s
        Planned times on the connection, from the window's start, with all workers in lock step.
    """

    group: Index
    offset_bytes: Bytes
    size_bytes: Annotated[int, Field(gt=0, lt=2**63)]
    link: Index
    priority: Index
    push_start_s: Seconds
    push_end_s: Seconds
    pull_start_s: Seconds
    pull_end_s: Seconds


class PushPullSchedule(Document):
    """Fused groups, their segments in the order to be sent with the server of each, predictions and proofs.

    Valid once built: segments cover every group's buffer exactly once, cut no element, have distinct places
    in the order and servers that there are. Whether it fits a profile is for ``pace.check`` to say.
    """

    schema_version: Literal[2] = 2
    exchange: Literal["push-pull"] = "push-pull"
    profile_sha256: Sha256
    fingerprint: Sha256
    cluster: Cluster
    solver: ExchangeSolver
    predicted: Prediction
    certificates: tuple[LinkCertificate, ...]
    bound: ExchangeBound
    chain_bound: ChainBound | None = None
    execution: ExchangeExecution
    groups: tuple[ExchangeGroup, ...]
    segments: tuple[ExchangeSegment, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse_gaps(self.groups, self.segments)
        servers = self.cluster.exchange.servers
        places: set[int] = set()
        for number, segment in enumerate(self.segments):
            if segment.link >= servers:
                raise ValueError(f"segment {number} is on server {segment.link} of {servers}")
            if segment.priority in places:
                raise ValueError(f"segment {number}: two segments have priority {segment.priority}")
            places.add(segment.priority)
        return self

    def to_json(self) -> bytes:
        """Serialize; the same schedule always gives the same bytes."""
        return self.model_dump_json(indent=2).encode() + b"\n"


def parse_push_pull_schedule(document: bytes | str) -> PushPullSchedule:
    """Read a schedule of push and pull from JSON; raises InvalidSchedule with one line per fault."""
    try:
        return PushPullSchedule.model_validate_json(document, strict=True)
    except ValidationError as error:
        raise InvalidSchedule(explain(error)) from None
