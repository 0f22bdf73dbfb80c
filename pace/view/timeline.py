"""The predicted window, laid out in time: when every op and every segment runs, and a Chrome trace of it.

The trace opens in Perfetto: one lane for each compute stream, lanes for ops without a stream, one for the
network, flows from a gradient's producer through its segments to its first consumer, and a counter of the
bytes that are ready and not yet reduced.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pace.documents.profile import Profile
from pace.documents.schedule import Schedule, Segment
from pace.solver.arrays import FloatArray
from pace.solver.compute_clock import ComputeClock
from pace.view.chrome_trace import ChromeTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTimes:
    """When every op of the profile starts and ends, in seconds from the window's start."""

    starts_s: FloatArray
    ends_s: FloatArray


def op_times(profile: Profile, schedule: Schedule) -> OpTimes:
    """Run the window: every op as early as its predecessors, its stream and its gradients allow.

    For a target with a barrier, and behind a norm, ops that wait for any gradient wait for all of them.
    """
    clock = _clock(profile, schedule)
    ends_of_groups = [float(clock.wall_s(group.ready_s)) for group in schedule.groups]
    for segment in schedule.segments:
        ends_of_groups[segment.group] = max(ends_of_groups[segment.group], segment.end_s)
    arrival = {
        name: end
        for end, group in zip(ends_of_groups, schedule.groups, strict=True)
        for name in group.gradients
    }
    if schedule.target != "pace" or profile.update == "global-norm":
        arrival = dict.fromkeys(arrival, max(arrival.values(), default=0.0))
    return op_times_after(profile, arrival, clock)


def _clock(profile: Profile, schedule: Schedule) -> ComputeClock:
    carried = ((segment.start_s, segment.end_s) for segment in schedule.segments)
    return ComputeClock.observed(profile.compute_slowdown, carried)


def op_times_after(
    profile: Profile, arrival: Mapping[str, float], clock: ComputeClock | None = None
) -> OpTimes:
    """Run the window with every gradient back at a given time, and ops slowed down as the clock says."""
    clock = clock or ComputeClock(1.0)
    back = {name: float(clock.compute_s(end)) for name, end in arrival.items()}
    starts, ends = np.zeros(len(profile.ops)), np.zeros(len(profile.ops))
    for number in profile.graph.order:
        op = profile.ops[number]
        before = [ends[previous] for previous in profile.graph.predecessors[number]]
        starts[number] = max([0.0, *before, *(back[name] for name in op.waits_for)])
        ends[number] = starts[number] + op.duration_s
    return OpTimes(starts_s=clock.wall_s(starts), ends_s=clock.wall_s(ends))


def chrome_trace(profile: Profile, schedule: Schedule) -> dict[str, Any]:
    """Return the predicted window as a Chrome trace document (JSON-ready)."""
    times, clock = op_times(profile, schedule), _clock(profile, schedule)
    lanes = lanes_of(profile, times)
    network = len(lanes.names)
    ends = _ends(profile, schedule, times)
    trace = ChromeTrace(f"predicted: {profile.name}")
    for row, name in enumerate([*lanes.names, "network"]):
        trace.add_row(row, name)
    for number, op in enumerate(profile.ops):
        trace.add_slice(
            lanes.of_op[number], op.name, float(times.starts_s[number]), float(times.ends_s[number])
        )
    for number, segment in enumerate(schedule.segments):
        group = schedule.groups[segment.group]
        arguments = {
            "group": segment.group,
            "priority": segment.priority,
            "offset_bytes": segment.offset_bytes,
            "size_bytes": segment.size_bytes,
            "gradients": list(group.gradients),
            "critical": segment.group in schedule.certificate.groups,
        }
        trace.add_slice(network, f"group {segment.group}", segment.start_s, segment.end_s, arguments)
        trace.add_flow(number, f"group {segment.group}", _steps(segment, lanes, times, ends, network))
    trace.add_backlog(
        [
            *((float(clock.wall_s(group.ready_s)), group.size_bytes) for group in schedule.groups),
            *((segment.end_s, -segment.size_bytes) for segment in schedule.segments),
        ]
    )
    return trace.document(profile_sha256=profile.sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """Rows of a chart: their names, and the row of every op."""

    names: list[str]
    of_op: list[int]


def lanes_of(profile: Profile, times: OpTimes) -> Lanes:
    """Give each stream a lane, and ops without a stream as few lanes as their overlaps allow."""
    names = list(dict.fromkeys(op.stream for op in profile.ops if op.stream is not None))
    streams = {name: lane for lane, name in enumerate(names)}
    of_op = [0] * len(profile.ops)
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for number in np.argsort(times.starts_s, kind="stable"):
        stream = profile.ops[number].stream
        if stream is not None:
            of_op[number] = streams[stream]
            continue
        while busy and busy[0][0] <= times.starts_s[number]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            names.append(f"ops {len(names) - len(streams)}")
            free.append(len(names) - 1)
        of_op[number] = heapq.heappop(free)
        heapq.heappush(busy, (float(times.ends_s[number]), of_op[number]))
    return Lanes(names=names, of_op=of_op)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """For every group, the op that completes it and the first op that waits for it, if any does."""

    producers: list[int]
    consumers: list[int | None]


def _ends(profile: Profile, schedule: Schedule, times: OpTimes) -> _Ends:
    group_of = {name: number for number, group in enumerate(schedule.groups) for name in group.gradients}
    producers = [-1] * len(schedule.groups)
    consumers: list[int | None] = [None] * len(schedule.groups)
    for gradient, op in zip(profile.gradients, profile.producers, strict=True):
        at = group_of[gradient.name]
        if producers[at] < 0 or times.ends_s[op] > times.ends_s[producers[at]]:
            producers[at] = op
    for number, op_document in enumerate(profile.ops):
        for at in {group_of[name] for name in op_document.waits_for}:
            first = consumers[at]
            if first is None or times.starts_s[number] < times.starts_s[first]:
                consumers[at] = number
    return _Ends(producers=producers, consumers=consumers)


def _steps(
    segment: Segment, lanes: Lanes, times: OpTimes, ends: _Ends, network: int
) -> list[tuple[int, float]]:
    """Return the way from the op that completes the segment's group to it and on to its first consumer."""
    producer, consumer = ends.producers[segment.group], ends.consumers[segment.group]
    steps = [(lanes.of_op[producer], float(times.ends_s[producer])), (network, segment.start_s)]
    if consumer is not None:
        steps.append((lanes.of_op[consumer], float(times.starts_s[consumer])))
    return steps
