"""The plan that the engine follows: groups of gradients, their segments in order, and the credit.

A plan is made from a schedule, after a check that it fits the model and the number of workers. Without a
schedule it is computed here. Pure data: no buffers and no communication.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Literal

from pace.documents.profile import ELEMENT_BYTES, fingerprint
from pace.documents.schedule import Execution, Schedule
from pace.errors import ScheduleMismatch
from pace.runtime.transports.transport import Discipline

MEBIBYTE = 1 << 20

GroupExchange = Literal["allreduce", "servers", "reduce-scatter", "all-gather"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSize:
    """The name, size and type of a gradient, from which the fingerprint is computed."""

    name: str
    size_bytes: int
    dtype: str


Buckets = Callable[[Sequence[GradientSize]], list[list[GradientSize]]]
"""Puts gradients into buckets as a framework does, and returns them in the order in which it sends them. The
gradients are given in the reverse of the order in which they become ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGroup:
    """Gradients that share a buffer, in buffer order, with the times that decide their place in the order.

    Attributes
    ----------
    ready_s, tail_s
        Ready time and tail of the group, in seconds.
    exchange
        How it is summed, in a job that has several ways; None if the transport has only one.
    shards
        In a sharded plan, the shards whose matrices are its buffer, one after another.
    """

    gradients: tuple[str, ...]
    size_bytes: int
    dtype: str
    ready_s: float
    tail_s: float
    exchange: GroupExchange | None = None
    shards: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedShard:
    """Gradients stored one after another in a matrix with one row for each rank, padded at its end.

    Attributes
    ----------
    num_columns
        Number of elements in a row; at least one.
    """

    gradients: tuple[str, ...]
    dtype: str
    num_columns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSegment:
    """A byte range of a group's buffer. The order of `SendPlan.segments` is the order of sending.

    In a sharded plan it is a range of columns; its bytes are those of all rows.

    Attributes
    ----------
    link
        The number of its parameter server; None if the transport chooses one, or there are none.
    """

    group: int
    offset_bytes: int
    size_bytes: int
    link: int | None = None


@dataclass(frozen=True, kw_only=True)
class SendPlan:
    """Groups, segments in planned order, and how many bytes may be in flight.

    Attributes
    ----------
    source
        Where it comes from: "schedule", "local" (computed here) or "plain" (as frameworks do, buckets in the
        order in which gradients become ready).
    credit_bytes
        How many bytes may be in flight. 0 means one segment at a time.
    predicted_iteration_s
        The iteration time that the schedule predicts, in seconds; None for plans computed here.
    pace_bytes_per_s
        The rate at which both ends of a connection to a server send; None for no limit.
    shards
        In a sharded plan, the shards that are summed and gathered by rows. Its groups are calls, all
        reduce-scatters before all gathers. Empty in a plan of all-reduces.
    order
        What decides which segment is sent next, if that is a part of the plan; else None.
    """

    source: Literal["schedule", "local", "plain"]
    groups: tuple[PlannedGroup, ...]
    segments: tuple[PlannedSegment, ...]
    credit_bytes: int
    predicted_iteration_s: float | None = None
    pace_bytes_per_s: float | None = None
    shards: tuple[PlannedShard, ...] = ()
    order: Discipline | None = None

    @cached_property
    def sha256(self) -> str:
        """The hash of everything that must be equal on all ranks."""
        document = {
            "groups": [asdict(group) for group in self.groups],
            "segments": [asdict(segment) for segment in self.segments],
            "credit_bytes": self.credit_bytes,
            "pace_bytes_per_s": self.pace_bytes_per_s,
            "shards": [asdict(shard) for shard in self.shards],
            "order": self.order,
        }
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def plan_from_schedule(
    schedule: Schedule,
    gradients: Sequence[GradientSize],
    workers: int,
    *,
    servers: int = 0,
) -> SendPlan:
    """Convert a schedule to a plan for these gradients.

    Parameters
    ----------
    gradients
        The gradients of the model.
    workers
        Number of ranks.
    servers
        Number of parameter servers; 0 for ranks that all-reduce.

    Raises
    ------
    ScheduleMismatch
        If the schedule was made for other gradients or another number of workers, or is sharded. The message
        says what differs.
    """
    if schedule.exchange == "sharded":
        raise ScheduleMismatch(
            "the schedule is sharded (reduce-scatter and all-gather): use AllReduce(sharding='on'), or make"
            ' a schedule with exchange "allreduce"'
        )
    mine = fingerprint(((g.name, g.size_bytes, g.dtype) for g in gradients), workers)
    differences = _differences(schedule, gradients)
    if schedule.fingerprint != mine and not differences:
        differences = [
            f"names and group sizes are equal, so it was made for another number of workers than {workers}"
            " or for gradients of other sizes within their groups"
        ]
    if schedule.cluster is not None and schedule.cluster.exchange.servers != servers:
        there = (
            f"there are {servers}"
            if servers
            else "the job has none: use pace_servers.runtime.ParameterServers()"
        )
        differences.append(f"it is for {schedule.cluster.exchange.servers} parameter servers, but {there}")
    if differences:
        shown = differences[:8] + ([f"and {len(differences) - 8} more"] if len(differences) > 8 else [])
        raise ScheduleMismatch(
            f"the schedule does not fit this model (schedule {schedule.fingerprint[:12]}, model {mine[:12]}):"
            f" {'; '.join(shown)}"
        )
    on_servers = schedule.exchange == "servers"
    segments = schedule.of_op("push") if on_servers else schedule.transfers
    order = sorted(segments, key=lambda s: (s.priority, s.group, s.offset_bytes))
    return SendPlan(
        source="schedule",
        groups=tuple(
            PlannedGroup(
                gradients=group.tensors,
                size_bytes=group.size_bytes,
                dtype=group.dtype,
                ready_s=group.ready_s,
                tail_s=group.tail_s,
            )
            for group in schedule.groups
        ),
        segments=tuple(
            PlannedSegment(
                group=s.group,
                offset_bytes=s.offset_bytes,
                size_bytes=s.size_bytes,
                link=s.link // 2 if on_servers else None,
            )
            for s in order
        ),
        credit_bytes=schedule.execution.max_segment_bytes if on_servers else credit_of(schedule.execution),
        predicted_iteration_s=schedule.predicted.iteration_s,
        pace_bytes_per_s=schedule.execution.connection_bytes_per_s,
    )


def plan_locally(
    gradients: Sequence[GradientSize],
    *,
    max_group_bytes: int = 4 * MEBIBYTE,
    max_segment_bytes: int = 4 * MEBIBYTE,
    credit_bytes: int = 8 * MEBIBYTE,
) -> SendPlan:
    """Return a plan made without any measurement: neighbors share groups, sent in order of readiness.

    It assumes that gradients become ready in reverse order and are needed in order, as in a model whose
    parameters are defined in the order of use. Times are unknown, and any other order could leave the network
    idle.
    """
    buckets: list[list[GradientSize]] = []
    filled = 0
    for gradient in reversed(gradients):
        filled += gradient.size_bytes
        if not buckets or filled > max_group_bytes or buckets[-1][0].dtype != gradient.dtype:
            buckets.append([])
            filled = gradient.size_bytes
        buckets[-1].append(gradient)
    return _in_order(buckets, max_segment_bytes=max_segment_bytes, credit_bytes=credit_bytes, source="local")


def ddp_buckets(
    gradients: Sequence[GradientSize], limits: Sequence[int] = (MEBIBYTE, 25 * MEBIBYTE)
) -> list[list[GradientSize]]:
    """Return the buckets of PyTorch's DDP; see ``compute_bucket_assignment_by_size`` there.

    Parameters
    ----------
    gradients
        In the reverse of the order in which they become ready.
    limits
        A bucket is closed once it has so many bytes: the first of each dtype, the second, and so on. The last
        number is for all further ones.
    """
    buckets: list[list[GradientSize]] = []
    closed: dict[str, int] = {}
    filling: dict[str, list[GradientSize]] = {}
    for gradient in reversed(gradients):
        bucket = filling.setdefault(gradient.dtype, [])
        bucket.append(gradient)
        number = closed.get(gradient.dtype, 0)
        if sum(each.size_bytes for each in bucket) >= limits[min(number, len(limits) - 1)]:
            buckets.append(filling.pop(gradient.dtype))
            closed[gradient.dtype] = number + 1
    return [*buckets, *filling.values()]


def plan_plainly(buckets: Sequence[Sequence[GradientSize]]) -> SendPlan:
    """Return the plan of a framework: uncut buckets, in this order."""
    return _in_order(buckets, max_segment_bytes=1 << 62, credit_bytes=1 << 62, source="plain")


def _in_order(
    buckets: Sequence[Sequence[GradientSize]],
    *,
    max_segment_bytes: int,
    credit_bytes: int,
    source: Literal["local", "plain"],
) -> SendPlan:
    groups = [
        PlannedGroup(
            gradients=tuple(gradient.name for gradient in bucket),
            size_bytes=sum(gradient.size_bytes for gradient in bucket),
            dtype=bucket[0].dtype,
            ready_s=float(number),
            tail_s=float(number),
        )
        for number, bucket in enumerate(buckets)
    ]
    return SendPlan(
        source=source,
        groups=tuple(groups),
        segments=tuple(
            segment
            for number, group in enumerate(groups)
            for segment in cut(number, group.size_bytes, group.dtype, max_segment_bytes)
        ),
        credit_bytes=credit_bytes,
    )


def cut(group: int, size_bytes: int, dtype: str, max_segment_bytes: int) -> list[PlannedSegment]:
    """Cut a group's buffer into segments of at most `max_segment_bytes`, none inside an element."""
    element = {str(name): size for name, size in ELEMENT_BYTES.items()}[dtype]
    step = max(max_segment_bytes // element, 1) * element
    return [
        PlannedSegment(group=group, offset_bytes=offset, size_bytes=min(step, size_bytes - offset))
        for offset in range(0, size_bytes, step)
    ]


def divide(plan: SendPlan, gradients: Sequence[GradientSize], pushed: Collection[str]) -> SendPlan:
    """Set how each group is summed where some gradients go over parameter servers; split mixed groups.

    The segments of both parts keep the places of the group's segments in the order, byte for byte.

    Parameters
    ----------
    gradients
        All gradients of the plan.
    pushed
        Names of those that are summed on parameter servers.
    """
    sizes = {gradient.name: gradient.size_bytes for gradient in gradients}
    groups: list[PlannedGroup] = []
    new_numbers: list[list[int]] = []
    for group in plan.groups:
        names = {
            "servers": tuple(name for name in group.gradients if name in pushed),
            "allreduce": tuple(name for name in group.gradients if name not in pushed),
        }
        kinds: list[GroupExchange] = ["servers", "allreduce"]
        mine = [kind for kind in kinds if names[kind]]
        new_numbers.append(list(range(len(groups), len(groups) + len(mine))))
        groups += [
            replace(
                group,
                gradients=names[kind],
                size_bytes=sum(sizes[name] for name in names[kind]),
                exchange=kind,
            )
            for kind in mine
        ]
    return replace(plan, groups=tuple(groups), segments=tuple(_divided_segments(plan, groups, new_numbers)))


def _divided_segments(
    plan: SendPlan, groups: Sequence[PlannedGroup], new_numbers: Sequence[Sequence[int]]
) -> list[PlannedSegment]:
    longest = [0] * len(plan.groups)
    for segment in plan.segments:
        longest[segment.group] = max(longest[segment.group], segment.size_bytes)
    waiting = [
        [part for new in numbers for part in cut(new, groups[new].size_bytes, groups[new].dtype, most)]
        if len(numbers) > 1
        else []
        for numbers, most in zip(new_numbers, longest, strict=True)
    ]
    owed = [0] * len(plan.groups)
    segments = []
    for segment in plan.segments:
        numbers = new_numbers[segment.group]
        if len(numbers) == 1:
            link = segment.link if groups[numbers[0]].exchange == "servers" else None
            segments.append(replace(segment, group=numbers[0], link=link))
            continue
        owed[segment.group] += segment.size_bytes
        parts = waiting[segment.group]
        while parts and owed[segment.group] > 0:
            part = parts.pop(0)
            owed[segment.group] -= part.size_bytes
            segments.append(part)
    return segments


def credit_of(execution: Execution) -> int:
    """Return the credit, in bytes, with which no more full segments are in flight than a schedule allows.

    One segment always may be in flight, so 0 means one at a time.
    """
    return execution.max_in_flight * (execution.max_segment_bytes if execution.max_in_flight > 1 else 0)


def _differences(schedule: Schedule, gradients: Sequence[GradientSize]) -> list[str]:
    mine = {gradient.name: gradient for gradient in gradients}
    groups = schedule.groups
    planned = {name for group in groups for name in group.tensors}
    found = [f'the model has no gradient "{name}"' for name in sorted(planned - mine.keys())]
    found += [f'the schedule does not send gradient "{name}"' for name in sorted(mine.keys() - planned)]
    for number, group in enumerate(groups):
        members = [mine[name] for name in group.tensors if name in mine]
        found += [
            f'gradient "{member.name}" is {member.dtype}, but {group.dtype} in the schedule'
            for member in members
            if member.dtype != group.dtype
        ]
        size_bytes = sum(member.size_bytes for member in members)
        if len(members) == len(group.tensors) and size_bytes != group.size_bytes:
            found.append(
                f"group {number} ({', '.join(group.tensors[:3])}{', ...' if len(members) > 3 else ''}) "
                f"has {size_bytes} bytes in the model and {group.size_bytes} in the schedule"
            )
    return found
