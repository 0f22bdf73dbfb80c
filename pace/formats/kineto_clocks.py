"""How long the ops of a recorded step lasted: on the device, on the host, or on both together.

A job that is bound by its host leaves the device idle between kernels. The hybrid clock charges an op with
its kernels and with the idle time before them, except where all-reduces ran meanwhile although the kernel
had been launched: that is waiting for the network, which a prediction adds anew. Waiting for other
collectives counts for them (``pace.formats.fixed_collectives``).
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from pace.formats.busy_time import BusyTime
from pace.formats.fixed_collectives import FollowedCalls, find_what_calls_followed
from pace.formats.kineto_device import PlacedWork
from pace.formats.kineto_records import KinetoStep, Part
from pace.formats.recorded_collectives import ALL_REDUCE, RecordedCall

TraceClock = Literal["auto", "hybrid", "device", "host"]


def choose_clock(clock: TraceClock, steps: Sequence[KinetoStep], placed: PlacedWork) -> TraceClock:
    """Return the clock that "auto" stands for: what the trace has the most of."""
    if clock == "hybrid" or clock == "auto":
        if not any(op.device_s for step in steps for op in step.backward):
            return "host"
        launched = any(kernel.launch_s is not None for kernel in placed.kernels)
        return "hybrid" if launched else "device"
    return clock


def measure_device(steps: Sequence[KinetoStep], placed: PlacedWork, calls: Sequence[RecordedCall]) -> None:
    """Follow the device's timeline, and divide it among the ops, the updates and waiting.

    Streams are taken together: time when any computes is busy, and counts for the kernel that began it.
    """
    reduces = BusyTime((call.start_s, call.end_s) for call in calls if call.name == ALL_REDUCE)
    others = BusyTime((call.start_s, call.end_s) for call in calls if call.name != ALL_REDUCE)
    fixed = FollowedCalls(steps, reduces)
    launched = [k.start_s - k.launch_s for k in placed.kernels if k.launch_s is not None]
    latency = max(float(np.percentile(launched, 5)), 0.0) if launched else 0.0
    busy_until: float | None = None
    ended: dict[int, float] = {}
    began: float | None = None
    for kernel in placed.kernels:
        launch = kernel.start_s if kernel.launch_s is None else min(kernel.launch_s + latency, kernel.start_s)
        if busy_until is None:
            busy_until = kernel.start_s
            if kernel.step is not None:
                busy_until -= max(launch - steps[kernel.step].start_s, 0.0)
        if kernel.step is not None:
            step = steps[kernel.step]
            if began is None:
                began = busy_until
                # A device behind its host is still busy with earlier steps when the first one begins.
                step.span_is_whole = not placed.early
            since = fixed.end_s(kernel, busy_until)
            if since > busy_until:
                waited = others.within(busy_until, since)
                step.fixed_s += waited
                exposed = min(reduces.within(busy_until, since), since - busy_until - waited)
                step.exposed_s += exposed
                step.host_s += since - busy_until - waited - exposed
            lasting = max(kernel.end_s - max(since, kernel.start_s), 0.0)
            if kernel.start_s > since:
                if launch > step.backward[-1].host_end_s:
                    step.host_ahead_s += reduces.within(since, max(launch, since))
                lasting += _idle(step, since, launch, kernel.start_s, reduces, others)
            if kernel.op is not None:
                kernel.op.lasting_s += lasting
            else:
                step.update_lasting_s += lasting
            ended[kernel.step] = max(ended.get(kernel.step, 0.0), busy_until, kernel.end_s)
        busy_until = max(busy_until, kernel.end_s)
    for number, end in sorted(ended.items()):
        if began is not None:
            steps[number].span_s = max(end - began, 0.0)
        began = end
    for step in steps:
        own = {id(op) for op in (*step.forward, *step.backward)}
        step.update_lasting_s += sum(op.lasting_s for op in step.update if id(op) not in own)
        ended_s = [op.device_end_s if op.device_s else None for op in step.forward]
        find_what_calls_followed(step, ended_s, "forward")
        ended_s = [op.device_end_s if op.device_s else None for op in step.backward]
        find_what_calls_followed(step, ended_s, "backward")


def _idle(
    step: KinetoStep, idle_s: float, launched_s: float, start_s: float, reduces: BusyTime, others: BusyTime
) -> float:
    """Note why the device was idle before a kernel; return what is no waiting for all-reduces."""
    launched_s = max(launched_s, idle_s)
    exposed = reduces.within(launched_s, start_s)
    step.host_s += launched_s - idle_s
    step.exposed_s += exposed
    step.fixed_s += min(others.within(launched_s, start_s), start_s - launched_s - exposed)
    return start_s - idle_s - exposed


def durations(clock: TraceClock, step: KinetoStep, part: Part) -> list[float]:
    """Return how long each op of a pass lasted.

    On the host's clock an op lasts until the next one begins, and what the host does after one step's update
    and before the next one's first op counts for that: Python runs between operators, and no schedule hides
    that.
    """
    ops = step.ops_of(part)
    if clock == "hybrid":
        return [op.lasting_s for op in ops]
    if clock == "device":
        return [sum(op.device_s.values()) for op in ops]
    starts = [op.op.start_s for op in ops]
    end = ops[-1].host_end_s
    if part == "forward":
        updated_s = max((op.op.end_s for op in step.update), default=step.end_s)
        starts[0] = min(step.start_s + step.early_communication_s, starts[0]) - max(
            step.end_s - updated_s, 0.0
        )
        end = max(step.backward[0].op.start_s, end)
    return [
        max(after - start - op.communication_s, 0.0)
        for op, (start, after) in zip(ops, pairwise([*starts, end]), strict=True)
    ]


def update_duration(clock: TraceClock, step: KinetoStep) -> float:
    """Return how long the update of a step lasted.

    On the host's clock it begins when the last all-reduce has ended: until then the host waits for it between
    the ops that unpack buckets.
    """
    if clock == "hybrid":
        return step.update_lasting_s
    if clock == "device":
        return sum(sum(op.device_s.values()) for op in step.update) + step.update_work_s
    if not step.update:
        return 0.0
    since = max(min(op.op.start_s for op in step.update), step.reduced_s)
    waited = sum(op.communication_s for op in step.update if op.op.start_s >= since)
    return max(max(op.op.end_s for op in step.update) - since - waited, 0.0)


def wall_durations(clock: TraceClock, steps: Sequence[KinetoStep]) -> list[float]:
    """Return how long each step took: on the device from end to end, else from one start to the next."""
    if clock == "hybrid":
        whole = [step.span_s for step in steps if step.span_is_whole]
        return whole or [step.span_s for step in steps]
    periods = [after.start_s - before.start_s for before, after in pairwise(steps)]
    own = [step.end_s - step.start_s for step in steps]
    # A step that was left out lies between two that were kept: then only the step itself counts.
    return [
        period if period < 1.5 * duration else duration
        for period, duration in zip([*periods, own[-1]], own, strict=True)
    ]
