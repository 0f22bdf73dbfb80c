"""What the simulator expects of every contender, from the profile and the captured cost alone."""

from dataclasses import replace

import numpy as np

from benchmarks.harness.contenders import DDP_FIRST_MIB, DDP_MIB, HOROVOD_THRESHOLD_BYTES, MEBIBYTE, Contender
from benchmarks.harness.workload.replicas import fifo_schedule
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.schedule import Schedule, Segment
from pace.kinds import optimize
from pace.planning.allreduce.optimize import optimize_allreduce
from pace.simulation import make_policy, run_policy
from pace.simulation.scheduled import Following
from pace.simulation.traffic import Policy, Sender

# ByteScheduler's code: so many parameters of 4 bytes in a partition and in flight.
PARTITION_BYTES, CREDIT_BYTES = 4_000_000, 16_000_000


def schedule_for(contender: Contender, profile: Profile, size_factor: float) -> Schedule | None:
    """Return the schedule that a contender follows; None for those that follow none."""
    if contender.sharded:
        return optimize(profile, contender.options)
    if contender.kind in ("pace", "hsdp"):
        return optimize_allreduce(profile, contender.options)
    if contender.kind == "hsdp-fifo":
        return fifo_schedule(profile)
    if contender.kind == "bytescheduler":
        return _evenly_cut(optimize_allreduce(profile, Options(fusion="none")), size_factor)
    return None


def _evenly_cut(schedule: Schedule, size_factor: float) -> Schedule:
    """Cut every gradient into ByteScheduler's partitions, in order of layer from the input."""
    step = max(round(PARTITION_BYTES * size_factor) // 4, 1) * 4
    order = sorted(range(len(schedule.groups)), key=lambda group: -schedule.groups[group].tail_s)
    segments = [
        (group, offset, min(step, schedule.groups[group].size_bytes - offset))
        for group in order
        for offset in range(0, schedule.groups[group].size_bytes, step)
    ]
    credit = round(CREDIT_BYTES * size_factor)
    return schedule.model_copy(
        update={
            "transfers": tuple(
                Segment(
                    op="all-reduce",
                    group=group,
                    offset_bytes=offset,
                    size_bytes=size,
                    priority=at,
                    start_s=0.0,
                    end_s=0.0,
                )
                for at, (group, offset, size) in enumerate(segments)
            ),
            "execution": schedule.execution.model_copy(
                update={"max_in_flight": max(credit // step, 1), "max_segment_bytes": step}
            ),
        }
    )


def predict(
    contender: Contender,
    profile: Profile,
    size_factor: float,
    schedule: Schedule | None,
    bucket_mib: float | None = None,
) -> float:
    """Return the predicted iteration in seconds; `bucket_mib` is what DDP's sweep chose."""
    return run_policy(profile, _policy(contender, size_factor, schedule, bucket_mib)).iteration_s


def _policy(
    contender: Contender, factor: float, schedule: Schedule | None, bucket_mib: float | None
) -> Policy:
    if contender.sharded:
        return make_policy("sharded")
    if contender.kind in ("ddp", "ddp-sweep"):
        first, others = (bucket_mib, bucket_mib) if bucket_mib else (DDP_FIRST_MIB, DDP_MIB)
        return make_policy(
            "ddp", first_bytes=int(first * factor * MEBIBYTE), bucket_bytes=int(others * factor * MEBIBYTE)
        )
    if contender.kind == "horovod":
        unfused = contender.environment.get("HOROVOD_FUSION_THRESHOLD") == "0"
        threshold = 0 if unfused else max(round(HOROVOD_THRESHOLD_BYTES * factor), 1)
        return make_policy("horovod", fusion_bytes=threshold, blocking=True)
    assert isinstance(schedule, Schedule)
    return _Following(schedule, by_tail=contender.order == "priority", barrier=contender.mode == "barrier")


class _Following:
    """Our engine with a schedule: in the planned order, or by longest tail with the schedule's credit.

    An adaptive leader keeps to the plan where nothing is late, and in a prediction nothing is.
    """

    def __init__(self, schedule: Schedule, *, by_tail: bool, barrier: bool) -> None:
        self._schedule = schedule
        self._by_tail = by_tail
        self._following = Following(schedule=schedule, barrier=barrier)

    def prepare(self, profile: Profile) -> Sender:
        """Return what sends the schedule's segments."""
        sender = self._following.prepare(profile)
        if not self._by_tail:
            return sender
        groups = self._schedule.groups
        keys = [(-group.tail_s, group.ready_s, number) for number, group in enumerate(groups)]
        rank = np.empty(len(groups))
        rank[sorted(range(len(groups)), key=keys.__getitem__)] = np.arange(len(groups))
        # Within a group segments keep their order, as the engine sends them.
        turn = rank[[segment.group for segment in self._schedule.transfers]]
        execution = self._schedule.execution
        credit = execution.max_in_flight * execution.max_segment_bytes if execution.max_in_flight > 1 else 0
        rules = replace(sender.rules, in_order=False, credit_bytes=float(credit))
        return replace(sender, priority=turn, rules=rules)
