"""Sharded plans: reduce-scatters of gradients, then all-gathers of the updated parameters.

A plan is made from a sharded schedule, after a check that it fits the model and the number of workers.
Without a schedule it is computed here. With a norm all reduce-scatters come before all gathers; without one,
gathers are early.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from pace.documents.profile import ELEMENT_BYTES, fingerprint
from pace.documents.schedule import Schedule, Segment, ShardedOp
from pace.errors import ScheduleMismatch
from pace.runtime.engine.plan import (
    MEBIBYTE,
    GradientSize,
    PlannedGroup,
    PlannedSegment,
    PlannedShard,
    SendPlan,
    credit_of,
    plan_locally,
)


class SendTimes(NamedTuple):
    """When a group may be sent, and the time that follows it.

    Attributes
    ----------
    ready_s
        Earliest start from the window's start, if nothing else were sent.
    tail_s
        Time from the group's end to the window's end.
    """

    ready_s: float
    tail_s: float


class EarlyOrder(NamedTuple):
    """Segments in the order in which they are sent.

    Attributes
    ----------
    groups
        The times of the schedule's groups, by number.
    iteration_s
        Length of the window if segments take as long as in the schedule.
    """

    segments: tuple[Segment, ...]
    groups: tuple[SendTimes, ...]
    iteration_s: float


def order_from_step(schedule: Schedule) -> EarlyOrder:
    """Order the segments of a schedule without a norm for a runtime that gathers nothing before ``step()``.

    A gather is sent as soon as the reduce-scatters that it needs are done, before less urgent
    reduce-scatters. But no gather is sent before ``step()``, as user code may change gradients and
    hyper-parameters until then. A schedule may have gathers during the backward pass.

    Until the last gradient is ready, reduce-scatters keep the schedule's order. From then on, every remaining
    segment is released or needs only released ones. So longest tail first is optimal for the given segments
    (``pace.solver.two_halves.chains``).
    """
    groups = schedule.groups
    scatters, gathers = schedule.groups_of("reduce-scatter"), schedule.groups_of("all-gather")
    step_s = max((group.ready_s for group in scatters.values()), default=0.0)
    gather_of = {shard: number for number, group in gathers.items() for shard in group.shards}
    gathers_after = {
        number: {gather_of[shard] for shard in group.shards} for number, group in scatters.items()
    }
    needed: dict[int, set[int]] = {number: set() for number in gathers}
    for number, after in gathers_after.items():
        for gather in after:
            needed[gather].add(number)
    times = {
        number: SendTimes(group.ready_s, max(groups[n].duration_s + groups[n].tail_s for n in after))
        for (number, group), after in zip(scatters.items(), gathers_after.values(), strict=True)
    }
    for number, group in gathers.items():
        summed = [groups[n].ready_s + groups[n].duration_s for n in needed[number]]
        times[number] = SendTimes(max([step_s, *summed]), group.tail_s)
    now = 0.0
    order: list[Segment] = []
    pieces: list[deque[Segment]] = [deque() for _ in groups]
    planned = sorted(schedule.transfers, key=lambda segment: segment.priority)
    for segment in planned:
        pieces[segment.group].append(segment)
    missing = {number: len(needs) for number, needs in needed.items()}
    heap: list[tuple[float, bool, int]] = []

    def end_call(number: int) -> None:
        for gather in gathers_after[number]:
            missing[gather] -= 1
            if not missing[gather]:
                heapq.heappush(heap, (-times[gather].tail_s, True, gather))

    for segment in planned:
        if segment.op == "reduce-scatter" and now < step_s:
            order.append(pieces[segment.group].popleft())
            now = max(now, times[segment.group].ready_s) + segment.end_s - segment.start_s
            if not pieces[segment.group]:
                end_call(segment.group)
    # Of equal tails, reduce-scatters go first.
    for number in scatters:
        if pieces[number]:
            heapq.heappush(heap, (-times[number].tail_s, False, number))
    now, iteration_s = max(now, step_s), schedule.predicted.compute_s
    while heap:
        tail_s, is_gather, number = heapq.heappop(heap)
        for segment in pieces[number]:
            order.append(segment)
            now += segment.end_s - segment.start_s
        if is_gather:
            iteration_s = max(iteration_s, now - tail_s)
        else:
            end_call(number)
    return EarlyOrder(
        segments=tuple(order),
        groups=tuple(times[number] for number in range(len(groups))),
        iteration_s=iteration_s,
    )


_CREDIT_BYTES = 8 * MEBIBYTE
_ELEMENT_BYTES = {str(name): size for name, size in ELEMENT_BYTES.items()}


def plan_from_sharded_schedule(
    schedule: Schedule, gradients: Sequence[GradientSize], workers: int
) -> SendPlan:
    """Convert a sharded schedule to a plan for these gradients.

    Raises
    ------
    ScheduleMismatch
        If it was made for other gradients or another number of workers. The message says what differs.
    """
    mine = fingerprint(((g.name, g.size_bytes, g.dtype) for g in gradients), workers)
    differences = _differences(schedule, gradients, workers)
    if schedule.fingerprint != mine and not differences:
        differences = ["it was made for gradients of other sizes within their shards"]
    if differences:
        shown = differences[:8] + ([f"and {len(differences) - 8} more"] if len(differences) > 8 else [])
        raise ScheduleMismatch(
            f"the schedule does not fit this model (schedule {schedule.fingerprint[:12]}, model {mine[:12]}):"
            f" {'; '.join(shown)}"
        )
    ordered: Sequence[Segment]
    if schedule.shard_layout.norm is None:
        early = order_from_step(schedule)
        times, ordered, iteration_s = early.groups, early.segments, early.iteration_s
    else:
        times = tuple(SendTimes(group.ready_s, group.tail_s) for group in schedule.groups)
        ordered = sorted(schedule.transfers, key=lambda each: (each.op == "all-gather", each.priority))
        iteration_s = schedule.predicted.iteration_s
    groups = []
    for group, when in zip(schedule.groups, times, strict=True):
        assert group.op is not None
        groups.append(
            PlannedGroup(
                gradients=group.tensors,
                size_bytes=group.size_bytes,
                dtype=group.dtype,
                ready_s=when.ready_s,
                tail_s=when.tail_s,
                exchange=group.op,
                shards=group.shards,
            )
        )
    return SendPlan(
        source="schedule",
        groups=tuple(groups),
        segments=tuple(
            PlannedSegment(
                group=segment.group, offset_bytes=segment.offset_bytes, size_bytes=segment.size_bytes
            )
            for segment in ordered
        ),
        credit_bytes=credit_of(schedule.execution),
        predicted_iteration_s=iteration_s,
        shards=tuple(
            PlannedShard(gradients=each.tensors, dtype=each.dtype, num_columns=each.num_columns)
            for each in schedule.shard_layout.shards
        ),
    )


def plan_shards_locally(
    gradients: Sequence[GradientSize],
    workers: int,
    *,
    max_group_bytes: int = 4 * MEBIBYTE,
) -> SendPlan:
    """Return a plan made without any measurement: neighbors share groups, the same in both halves.

    It assumes that gradients become ready in reverse order, and parameters are needed in order.
    """
    fused = plan_locally(
        gradients, max_group_bytes=max_group_bytes, max_segment_bytes=1 << 62, credit_bytes=_CREDIT_BYTES
    )
    elements = {g.name: g.size_bytes // _ELEMENT_BYTES[g.dtype] for g in gradients}
    shards = tuple(
        PlannedShard(
            gradients=group.gradients,
            dtype=group.dtype,
            num_columns=-(-sum(elements[name] for name in group.gradients) // workers),
        )
        for group in fused.groups
    )
    sent = [number for number, shard in enumerate(shards) if shard.num_columns]
    halves: list[tuple[ShardedOp, list[int]]] = [("reduce-scatter", sent), ("all-gather", sent[::-1])]
    groups = [
        PlannedGroup(
            gradients=shards[number].gradients,
            size_bytes=_size_bytes(shards[number], workers),
            dtype=shards[number].dtype,
            ready_s=float(number),
            tail_s=float(number),
            exchange=exchange,
            shards=(number,),
        )
        for exchange, order in halves
        for number in order
    ]
    return SendPlan(
        source="local",
        groups=tuple(groups),
        segments=tuple(
            PlannedSegment(group=number, offset_bytes=0, size_bytes=group.size_bytes)
            for number, group in enumerate(groups)
        ),
        credit_bytes=_CREDIT_BYTES,
        shards=shards,
    )


def _size_bytes(shard: PlannedShard, workers: int) -> int:
    return workers * shard.num_columns * _ELEMENT_BYTES[shard.dtype]


def _differences(schedule: Schedule, gradients: Sequence[GradientSize], workers: int) -> list[str]:
    sharding = schedule.shard_layout
    mine = {gradient.name: gradient for gradient in gradients}
    planned = {name for shard in sharding.shards for name in shard.tensors}
    found = [f'the model has no gradient "{name}"' for name in sorted(planned - mine.keys())]
    found += [f'the schedule does not send gradient "{name}"' for name in sorted(mine.keys() - planned)]
    if sharding.workers != workers:
        found.append(f"it was made for another number of workers ({sharding.workers}) than {workers}")
    for number, shard in enumerate(sharding.shards):
        members = [mine[name] for name in shard.tensors if name in mine]
        found += [
            f'gradient "{member.name}" is {member.dtype}, but {shard.dtype} in the schedule'
            for member in members
            if member.dtype != shard.dtype
        ]
        elements = sum(member.size_bytes for member in members) // _ELEMENT_BYTES[shard.dtype]
        if len(members) == len(shard.tensors) and -(-elements // sharding.workers) != shard.num_columns:
            found.append(
                f"shard {number} has {elements} elements in the model, but {shard.num_columns} columns in the"
                " schedule"
            )
    return found


def refuse_hanging(plan: SendPlan) -> SendPlan:
    """Return a plan that cannot hang, before any rank uses it.

    The engine sends the segments of a queue in the plan's order, on every rank the same, each once its group
    is submitted. Gradients are submitted without waiting for any segment, and a gather once the
    reduce-scatters of its shards have ended. So in the wait-for relation of ``pace.order`` an arrow leads
    from a gather's segment to each segment of these reduce-scatters, and from each segment to the one before
    it. A circle needs an arrow forward in the order: the plan hangs if and only if a gather comes before a
    segment of a reduce-scatter that it needs. This takes O(segments), without the arrays and the compiled
    code of ``pace check-order``.

    Raises
    ------
    ScheduleMismatch
        If it can. The message says which call waits for which.
    """
    last_of: dict[int, tuple[int, int]] = {}
    groups = plan.groups
    for number, segment in enumerate(plan.segments):
        if groups[segment.group].exchange == "reduce-scatter":
            for shard in groups[segment.group].shards:
                last_of[shard] = (number, segment.group)
    for number, segment in enumerate(plan.segments if last_of else ()):
        group = groups[segment.group]
        if group.exchange != "all-gather":
            continue
        for shard in group.shards:
            later, scatter = last_of.get(shard, (-1, -1))
            if later > number:
                raise ScheduleMismatch(
                    f"the plan can hang: every rank waits at segment {number}, "
                    f"{_call(group, segment.group)}, for segment {later}, {_call(groups[scatter], scatter)}, "
                    "which it sends only afterwards"
                )
    return plan


def _call(group: PlannedGroup, number: int) -> str:
    return f'the {group.exchange} of group {number} ("{group.gradients[0]}")'
