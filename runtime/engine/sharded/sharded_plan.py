"""Sharded plans: reduce-scatters of gradients, then all-gathers of the updated parameters.

A plan is made from a sharded schedule, after a check that it fits the model and the number of workers.
Without a schedule it is computed here. With a norm all reduce-scatters come before all gathers; without one,
gathers are early.
"""

from collections.abc import Sequence

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
from pace.runtime.engine.sharded.early_gathers import SendTimes, order_from_step

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
