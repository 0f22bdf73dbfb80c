"""The schedule document: what the solver returns and the runtime follows, for every exchange."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pace.documents.base import Bytes, Document, Index, load, parse
from pace.documents.cluster import Cluster
from pace.documents.graph.plan import GraphPlan
from pace.documents.profile import DType, Name, Seconds
from pace.documents.proofs import ChainBound, NormBound, Proof, SetBound
from pace.documents.schedule_rules import refuse_misfits
from pace.documents.sharding import Sharding
from pace.errors import InvalidSchedule

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Exchange = Literal["allreduce", "sharded", "servers", "graph"]
Framework = Literal["ddp", "horovod"]
Oracle = Literal["jackson", "lp"]
# SciPy's HiGHS; CBC through PuLP; or the solver of PuLP that is named behind the colon.
LpSolver = Annotated[str, Field(pattern="^(scipy|pulp(:[A-Za-z0-9_]{1,40})?)$")]
Fusion = Literal["optimal", "paper", "none"]
SegmentOrder = Literal["longest tail", "johnson", "insertion", "exhaustive"]
SendDiscipline = Literal["overtake", "static"]
ShardedOp = Literal["reduce-scatter", "all-gather"]
TransferOp = Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all", "push", "pull"]


def _is_none(value: object) -> bool:
    return value is None


class SolverRecord(Document):
    """Which solver made the schedule, and how.

    Attributes
    ----------
    lp_solver, num_programs, programs_s
        With oracle "lp": the solver of the linear programs, their number, and the seconds that they took.
    slot_s
        Length of a slot in seconds, null in continuous time.
    method
        The algorithm that chose the groups, in words, with "exact" or "heuristic".
    curve
        Number of calls and expected iteration time under load of the plans that were compared, from few calls
        to many: the fastest with so many calls, if none with fewer is as fast.
    order
        With servers: the rule that gave the segments their positions.
    partition_bytes
        With servers: largest size of a segment in bytes, except that a rest below the cluster's
        ``min_partition_bytes`` goes with the segment before it. If the size was searched for, it counts the
        bytes that are sent of a segment.
    suggested_partition_bytes
        With servers: sqrt(M theta B / (2 S)), from which the search for `partition_bytes` started. M are the
        sent bytes, theta the fixed time of a segment, B the rate at which all S servers serve all workers.
    """

    refused_as = InvalidSchedule

    version: str
    oracle: Oracle = "jackson"
    lp_solver: Annotated[LpSolver | None, Field(exclude_if=_is_none)] = None
    num_programs: Annotated[int | None, Field(ge=0, exclude_if=_is_none)] = None
    programs_s: Annotated[float | None, Field(ge=0, allow_inf_nan=False, exclude_if=_is_none)] = None
    fusion: Fusion
    slot_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    method: str
    curve: Annotated[tuple[tuple[Index, Seconds], ...], Field(exclude_if=lambda curve: not curve)] = ()
    order: Annotated[SegmentOrder | None, Field(exclude_if=_is_none)] = None
    partition_bytes: Annotated[int | None, Field(ge=0, lt=2**63, exclude_if=_is_none)] = None
    suggested_partition_bytes: Annotated[
        float | None, Field(ge=0, allow_inf_nan=False, exclude_if=_is_none)
    ] = None


class Prediction(Document):
    """Predicted times of one window, in seconds.

    Attributes
    ----------
    iteration_s
        Predicted iteration time. Each segment pays the latency, and is never interrupted.
    ideal_iteration_s
        Shortest iteration time with these groups if preemption were free. With slots: their end in whole
        slots, which may be later than ``iteration_s``. With servers: the time that no order of these segments
        beats.
    compute_s
        Iteration time without any communication, so without anything that slows compute down.
    lower_bound_s
        Time that no schedule beats, however it groups gradients.
    gap
        iteration_s / lower_bound_s - 1.
    peak_bytes
        With a graph: peak memory in bytes.
    expected_s
        Expected iteration time under load, with late ranks and calls that take longer while compute runs,
        stated by the profile or assumed; its 95th percentile if that was minimized. Null with slots, with
        servers and with a graph.
    ddp_s
        The same for DDP's default buckets and its barrier.
    """

    refused_as = InvalidSchedule

    iteration_s: Seconds
    ideal_iteration_s: Seconds
    compute_s: Seconds
    lower_bound_s: Seconds
    gap: Annotated[float, Field(allow_inf_nan=False)]
    expected_s: Annotated[Seconds | None, Field(exclude_if=_is_none)] = None
    ddp_s: Annotated[Seconds | None, Field(exclude_if=_is_none)] = None
    peak_bytes: Annotated[Bytes | None, Field(exclude_if=_is_none)] = None


class Execution(Document):
    """How the runtime sends.

    Attributes
    ----------
    max_in_flight
        Number of segments that each link carries at once; 0 if nothing is sent.
    max_segment_bytes
        Size of the largest segment.
    discipline
        With servers: "overtake" if a connection sends the first ready segment of the plan, "static" if it
        waits for the segment that is planned next.
    connection_bytes_per_s
        With servers: limit on the rate of each connection; null if a limit gains nothing.
    """

    refused_as = InvalidSchedule

    max_in_flight: Index
    max_segment_bytes: Bytes
    discipline: Annotated[SendDiscipline | None, Field(exclude_if=_is_none)] = None
    connection_bytes_per_s: Annotated[float | None, Field(gt=0, allow_inf_nan=False, exclude_if=_is_none)] = (
        None
    )


class Group(Document):
    """Tensors that share one buffer, in their order in it.

    Attributes
    ----------
    ready_s, tail_s
        Ready time and tail of the group, if no traffic slowed compute down. In a sharded schedule, the tail
        of a reduce-scatter and the ready time of an all-gather are 0: there is no compute between the two.
    transfer_s
        Duration of the group if it is sent in one piece, in wall time; null with servers.
    op
        In a sharded schedule: the op that sends this group. Null in other schedules.
    shards
        In a sharded schedule: numbers of the shards in the buffer, side by side.
    """

    refused_as = InvalidSchedule

    tensors: Annotated[tuple[Name, ...], Field(min_length=1)]
    size_bytes: Bytes
    dtype: DType
    ready_s: Seconds
    tail_s: Seconds
    transfer_s: Seconds | None = None
    op: Annotated[ShardedOp | None, Field(exclude_if=_is_none)] = None
    shards: Annotated[tuple[Index, ...], Field(exclude_if=lambda shards: not shards)] = ()

    @property
    def duration_s(self) -> float:
        """`transfer_s`; 0 with servers, where it is not stated."""
        return self.transfer_s or 0.0


class Segment(Document):
    """A transfer: a contiguous byte range of a group's buffer, sent in one call on one link.

    In a sharded schedule, the buffer is a matrix with a row for each worker. Its bytes are counted column by
    column.

    Attributes
    ----------
    link
        Number of the link in ``Schedule.links``.
    priority
        Place in the planned order, or the slot in which it starts; smaller goes first. A push and its pull
        have the same priority.
    start_s, end_s
        Planned times on the link, from the window's start, in wall time.
    start_slot, num_slots
        First slot and number of slots; null in continuous time. An all-reduce that costs nothing has 0 slots.
        Slots give the order: `start_s` is before the first slot if the transfer before ends early.
    """

    refused_as = InvalidSchedule

    op: TransferOp
    group: Index
    offset_bytes: Bytes
    size_bytes: Annotated[int, Field(gt=0, lt=2**63)]
    link: Index = 0
    priority: Index
    start_s: Seconds
    end_s: Seconds
    start_slot: Index | None = None
    num_slots: Index | None = None


class Schedule(Document):
    """Groups, their transfers in the order to be sent, predictions and proofs.

    A schedule that was built is valid: for each op, transfers cover every group's buffer exactly once and cut
    no element, links exist, and each push has its pull. ``pace.check`` says whether it fits a profile.

    Attributes
    ----------
    framework
        Framework for which it was made, with its barrier: DDP or Horovod; null for PACE's runtime.
    links
        "network"; with servers "up 0", "down 0", "up 1", ...: the two directions of the connection to each
        server; with a graph its wires.
    groups
        All groups. In a sharded schedule, those of reduce-scatters come first, then those of all-gathers.
    transfers
        All transfers, in the order of their planned starts. With servers, each push is followed by its pull.
    proofs
        Proofs of ``predicted.ideal_iteration_s``.
    bound, chain_bound, norm_bound
        Proofs of ``predicted.lower_bound_s``. If updates wait for a global norm, a sharded schedule has only
        `norm_bound`.
    sharding, cluster, graph
        Further data of exchange "sharded", "servers" and "graph".
    """

    refused_as = InvalidSchedule

    schema_version: Literal[1] = 1
    exchange: Exchange
    framework: Annotated[Framework | None, Field(exclude_if=_is_none)] = None
    profile_sha256: Sha256
    fingerprint: Sha256
    solver: SolverRecord
    predicted: Prediction
    execution: Execution
    links: Annotated[tuple[str, ...], Field(min_length=1)] = ("network",)
    groups: tuple[Group, ...]
    transfers: tuple[Segment, ...]
    proofs: tuple[Proof, ...]
    bound: SetBound | None = None
    chain_bound: ChainBound | None = None
    norm_bound: Annotated[NormBound | None, Field(exclude_if=_is_none)] = None
    sharding: Annotated[Sharding | None, Field(exclude_if=_is_none)] = None
    cluster: Annotated[Cluster | None, Field(exclude_if=_is_none)] = None
    graph: Annotated[GraphPlan | None, Field(exclude_if=_is_none)] = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse_misfits(self)
        return self

    def to_json(self) -> bytes:
        """Serialize; the same schedule always gives the same bytes."""
        return self.model_dump_json(indent=2).encode() + b"\n"

    def of_op(self, op: TransferOp) -> Iterator[Segment]:
        """Yield the transfers of one op, as they are planned."""
        return (transfer for transfer in self.transfers if transfer.op == op)

    def groups_of(self, op: ShardedOp) -> dict[int, Group]:
        """Return the groups of one half of a sharded schedule by their numbers."""
        return {number: group for number, group in enumerate(self.groups) if group.op == op}

    @property
    def num_segments(self) -> int:
        """In how many pieces buffers are sent; a push and its pull are one."""
        return len(self.transfers) // (2 if self.exchange == "servers" else 1)

    @property
    def placement(self) -> Cluster:
        """The servers of a schedule with exchange "servers"."""
        assert self.cluster is not None
        return self.cluster

    @property
    def graph_plan(self) -> GraphPlan:
        """The order of nodes of a schedule with exchange "graph"."""
        assert self.graph is not None
        return self.graph

    @property
    def shard_layout(self) -> Sharding:
        """The shards of a schedule with exchange "sharded"."""
        assert self.sharding is not None
        return self.sharding


def parse_schedule(document: bytes | str) -> Schedule:
    """Read a schedule from JSON; raises InvalidSchedule with one line per fault."""
    return parse(Schedule, document)


def load_schedule(path: str | Path) -> Schedule:
    """Read a schedule from a JSON file; raises InvalidSchedule and OSError."""
    return load(parse_schedule, path, InvalidSchedule)
