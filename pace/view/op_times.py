"""When the ops of a window run, and in which row each is shown: the compute half of ``pace.view.window``."""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from pace.documents.profile import Profile
from pace.solver.arrays import FloatArray
from pace.solver.compute_clock import ComputeClock

Phase = Literal["backward", "forward", "collective", "compute", "copy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTimes:
    """When every op of the profile starts and ends, in seconds from the window's start."""

    starts_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    ends_s: FloatArray = field(default_factory=lambda: np.zeros(0))


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


def phases_of(profile: Profile) -> tuple[Phase, ...]:
    """Return the phase of every op: forward ops wait for gradients, or follow one that does."""
    waits = [bool(op.waits_for) for op in profile.ops]
    for number in profile.graph.order:
        waits[number] = waits[number] or any(waits[before] for before in profile.graph.predecessors[number])
    return tuple(
        "collective" if op.kind == "communication" else "forward" if waiting else "backward"
        for op, waiting in zip(profile.ops, waits, strict=True)
    )
