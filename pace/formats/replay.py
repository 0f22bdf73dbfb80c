"""A recorded step, replayed from a profile: its all-reduces as they ran, and priced by the profile's cost.

As they ran means: each with its recorded duration, on its recorded lane, handed over when the gradients were
ready that had been accumulated before. Calls on different lanes run at the same time. What the priced replay
lacks compared with this one was waiting for late ranks: no cost explains it, and no schedule changes it. What
it has too much was measured while calls shared the network, so the cost is scaled until both agree.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pace.documents.collective_costs import SampledAllReduce
from pace.documents.profile import Profile

_CLOSE = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedCall:
    """One recorded all-reduce.

    Attributes
    ----------
    ready
        How many gradients, in the profile's order, were ready when it was handed over.
    lane
        What it ran on: a device's stream or a thread of the host.
    delay_s
        From when it could have started until it did.
    follows
        How many of the calls before it had ended when a host that waited for them issued this one.
    """

    ready: int
    size_bytes: int
    lane: str
    duration_s: float
    delay_s: float = 0.0
    follows: int = 0


def as_they_ran(profile: Profile, calls: Sequence[ReplayedCall]) -> tuple[float, list[tuple[float, float]]]:
    """Return the length of the window in seconds, and when each call starts and ends in it."""
    timing = profile.timing
    free: dict[str, float] = {}
    times: list[tuple[float, float]] = []
    for call in calls:
        ready = float(timing.ready_s[: call.ready].max(initial=0.0))
        waited = max((end for _, end in times[: call.follows]), default=0.0)
        start = max(ready, waited, free.get(call.lane, 0.0)) + call.delay_s
        free[call.lane] = start + call.duration_s
        times.append((start, free[call.lane]))
    last = max((end for _, end in times), default=0.0)
    return max(timing.compute_s, last + after_the_barrier_s(profile)), times


def after_the_barrier_s(profile: Profile) -> float:
    """Return how long the window goes on when a training loop has waited for all all-reduces.

    That is the update and the whole forward pass: ops before the first consumer wait as well.
    """
    timing = profile.timing
    producers = {gradient.producer for gradient in profile.gradients}
    behind = 0.0
    for op in profile.ops:
        if op.name.startswith("bwd/") and op.kind == "compute":
            behind = 0.0 if op.name in producers else behind + op.duration_s
    forward = timing.compute_s - float(timing.ready_s.max(initial=0.0)) - behind
    return max(forward, float(timing.tail_s.max(initial=0.0)))


def priced_s(profile: Profile, calls: Sequence[ReplayedCall]) -> float:
    """Return the length of the window with the calls one after another, each at the profile's cost."""
    timing = profile.timing
    now = 0.0
    for call in calls:
        ready = float(timing.ready_s[: call.ready].max(initial=0.0))
        now = max(now, ready) + float(profile.cost(call.size_bytes))
    return max(timing.compute_s, now + after_the_barrier_s(profile))


def anchored(
    profile: Profile,
    steps: Sequence[Sequence[ReplayedCall]],
    recorded_s: Sequence[float],
    *,
    scale_cost: bool,
) -> tuple[Profile, dict[str, Any]]:
    """Return the profile with a cost that explains the recorded steps, and what its metadata says of that.

    Parameters
    ----------
    steps
        The all-reduces of every recorded step, in the order of their issue; the most usual step is shown.
    recorded_s
        How long each step took.
    scale_cost
        Whether the cost was measured in these steps: then it may be scaled down.
    """
    replays = [as_they_ran(profile, calls)[0] for calls in steps] or [profile.timing.compute_s]
    replayed = statistics.median(replays)
    scale = 1.0
    if scale_cost and steps and isinstance(profile.allreduce, SampledAllReduce):
        scale = _scale(profile, steps, replayed)
        if scale < 1:
            profile = profile.replace(allreduce=_scaled(profile.allreduce, scale))
    priced = _priced_median_s(profile, steps)
    # A host that waits between its calls would not if they were issued from hooks.
    undelayed = [[replace(call, delay_s=0.0) if call.follows else call for call in calls] for calls in steps]
    waiting = statistics.median([as_they_ran(profile, calls)[0] for calls in undelayed] or [replayed])
    recorded = statistics.median(recorded_s)
    usual = min(range(len(replays)), key=lambda place: (abs(replays[place] - replayed), -place))
    shown = list(steps[usual]) if steps else []
    times = as_they_ran(profile, shown)[1]
    return profile, {
        "predicted_s": replayed,
        "priced_s": priced,
        "recorded_s": list(recorded_s),
        "errors": [replayed / wall - 1 if wall else 0.0 for wall in recorded_s],
        "error": replayed / recorded - 1 if recorded else 0.0,
        "cost_scale": scale,
        "late_s": max(waiting - priced, 0.0),
        "calls": [
            {
                "ready": call.ready,
                "size_bytes": call.size_bytes,
                "lane": call.lane,
                "start_s": start,
                "end_s": end,
            }
            for call, (start, end) in zip(shown, times, strict=True)
        ],
    }


def with_replay(profile: Profile, replay: dict[str, Any], *, on_its_network: bool) -> Profile:
    """Return the profile with a replay in its metadata.

    Parameters
    ----------
    on_its_network
        Whether the profile's number of workers and cost are those of the recorded steps. If not, they say
        nothing about what another schedule gains.
    """
    return profile.replace(
        metadata={**profile.metadata, "replay": {**replay, "on_its_network": on_its_network}}
    )


def _priced_median_s(profile: Profile, steps: Sequence[Sequence[ReplayedCall]]) -> float:
    return statistics.median([priced_s(profile, calls) for calls in steps] or [profile.timing.compute_s])


def _scale(profile: Profile, steps: Sequence[Sequence[ReplayedCall]], wanted_s: float) -> float:
    """Return the factor below 1 by which the cost explains the steps; 1 if it need not be lower."""
    assert isinstance(profile.allreduce, SampledAllReduce)
    if _priced_median_s(profile, steps) <= wanted_s * (1 + _CLOSE) or profile.timing.compute_s >= wanted_s:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        scaled = profile.replace(allreduce=_scaled(profile.allreduce, middle))
        if _priced_median_s(scaled, steps) > wanted_s:
            high = middle
        else:
            low = middle
    return high


def _scaled(cost: SampledAllReduce, factor: float) -> SampledAllReduce:
    return cost.model_copy(
        update={
            "samples": tuple((size, seconds * factor) for size, seconds in cost.samples),
            "deviations_s": tuple(seconds * factor for seconds in cost.deviations_s),
        }
    )


def shares_of_the_wire(intervals: Sequence[tuple[float, float]]) -> list[float]:
    """Return, for calls that ran from a start to an end, what part of their time the wire was theirs.

    Calls that run at the same time have equal parts. O(N log N) for N calls, O(N^2) if all overlap.
    """
    moments = sorted({moment for interval in intervals for moment in interval})
    own = [0.0] * len(intervals)
    order = sorted(range(len(intervals)), key=lambda place: intervals[place])
    running: list[int] = []
    coming = 0
    for start, end in pairwise(moments):
        while coming < len(order) and intervals[order[coming]][0] <= start:
            running.append(order[coming])
            coming += 1
        running = [place for place in running if intervals[place][1] > start]
        for place in running:
            own[place] += (end - start) / len(running)
    return [
        part / (end - start) if end > start else 1.0
        for part, (start, end) in zip(own, intervals, strict=True)
    ]
