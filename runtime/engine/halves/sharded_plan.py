"""Plans in two halves: reduce-scatters of gradients, then all-gathers of the parameters made of them.

From a schedule in two halves, after a check that it was made for this model and this many workers, or
computed here. Behind a norm all reduce-scatters come before all gathers; without one, gathers are early.
"""

from collections.abc import Sequence

from pace.documents.fingerprint import fingerprint
from pace.documents.profile import ELEMENT_BYTES
from pace.documents.sharded_schedule import HalfName, HalfSegment, ShardedSchedule
from pace.errors import ScheduleMismatch
from pace.runtime.engine.halves.early_gathers import CallTimes, order_from_step
from pace.runtime.engine.plan import (
    MEBIBYTE,
    GradientSize,
    Plan,
    PlannedGroup,
    PlannedSegment,
    PlannedShard,
    plan_locally,
)

_ELEMENT_BYTES = {str(name): size for name, size in ELEMENT_BYTES.items()}


def plan_from_sharded_schedule(
    schedule: ShardedSchedule, gradients: Sequence[GradientSize], workers: int
) -> Plan:
    """Turn a schedule in two halves into a plan for these gradients.

    Raises
    ------
    ScheduleMismatch
        When it was made for other gradients or another number of workers; the message says what differs.
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
    first = len(schedule.reduce_scatters)
    ordered: Sequence[HalfSegment]
    if schedule.norm is None:
        early = order_from_step(schedule)
        times = {"reduce-scatter": early.scattered, "all-gather": early.gathered}
        ordered, iteration_s = early.segments, early.iteration_s
    else:
        times = {
            "reduce-scatter": tuple(CallTimes(call.time_s, 0.0) for call in schedule.reduce_scatters),
            "all-gather": tuple(CallTimes(0.0, call.time_s) for call in schedule.all_gathers),
        }
        ordered = sorted(schedule.segments, key=lambda each: (each.half == "all-gather", each.priority))
        iteration_s = schedule.predicted.iteration_s
    groups = [
        PlannedGroup(
            gradients=tuple(name for n in call.shards for name in schedule.shards[n].gradients),
            size_bytes=call.size_bytes,
            dtype=schedule.shards[call.shards[0]].dtype,
            ready_s=when.ready_s,
            tail_s=when.tail_s,
            exchange=half,
            shards=call.shards,
        )
        for half, calls in schedule.calls.items()
        for call, when in zip(calls, times[half], strict=True)
    ]
    segments = []
    for segment in ordered:
        column_bytes = schedule.column_bytes_of(schedule.calls[segment.half][segment.call])
        segments.append(
            PlannedSegment(
                group=segment.call + (first if segment.half == "all-gather" else 0),
                offset_bytes=segment.first_column * column_bytes,
                size_bytes=segment.num_columns * column_bytes,
            )
        )
    return Plan(
        source="schedule",
        groups=tuple(groups),
        segments=tuple(segments),
        credit_bytes=schedule.execution.credit_bytes,
        predicted_iteration_s=iteration_s,
        shards=tuple(
            PlannedShard(gradients=each.gradients, dtype=each.dtype, num_columns=each.num_columns)
            for each in schedule.shards
        ),
    )


def plan_shards_locally(
    gradients: Sequence[GradientSize],
    workers: int,
    *,
    max_group_bytes: int = 4 * MEBIBYTE,
    credit_bytes: int = 8 * MEBIBYTE,
) -> Plan:
    """Fuse neighbors without any measurement; both halves carry the same groups.

    Gradients are taken to become ready in reverse order, and parameters to be needed in order.
    """
    fused = plan_locally(
        gradients, max_group_bytes=max_group_bytes, max_segment_bytes=1 << 62, credit_bytes=credit_bytes
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
    halves: list[tuple[HalfName, list[int]]] = [("reduce-scatter", sent), ("all-gather", sent[::-1])]
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
    return Plan(
        source="local",
        groups=tuple(groups),
        segments=tuple(
            PlannedSegment(group=number, offset_bytes=0, size_bytes=group.size_bytes)
            for number, group in enumerate(groups)
        ),
        credit_bytes=credit_bytes,
        shards=shards,
    )


def _size_bytes(shard: PlannedShard, workers: int) -> int:
    return workers * shard.num_columns * _ELEMENT_BYTES[shard.dtype]


def _differences(schedule: ShardedSchedule, gradients: Sequence[GradientSize], workers: int) -> list[str]:
    mine = {gradient.name: gradient for gradient in gradients}
    planned = {name for shard in schedule.shards for name in shard.gradients}
    found = [f'the model has no gradient "{name}"' for name in sorted(planned - mine.keys())]
    found += [f'the schedule does not send gradient "{name}"' for name in sorted(mine.keys() - planned)]
    if schedule.workers != workers:
        found.append(f"it was made for another number of workers ({schedule.workers}) than {workers}")
    for number, shard in enumerate(schedule.shards):
        members = [mine[name] for name in shard.gradients if name in mine]
        found += [
            f'gradient "{member.name}" is {member.dtype}, the schedule takes it for {shard.dtype}'
            for member in members
            if member.dtype != shard.dtype
        ]
        elements = sum(member.size_bytes for member in members) // _ELEMENT_BYTES[shard.dtype]
        if len(members) == len(shard.gradients) and -(-elements // schedule.workers) != shard.num_columns:
            found.append(
                f"shard {number} has {elements} elements in the model, and {shard.num_columns} columns in the"
                " schedule"
            )
    return found
