"""What a profile says, derived anew: ready times, tails, and how far two times may differ."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import networkx
import numpy

from pace.documents.profile import Profile
from pace.documents.schedule import Schedule

TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedTimes:
    """What the profile says, derived anew; `slack_s` is how far two times may differ.

    Attributes
    ----------
    total_bytes
        Bytes of all gradients.
    ends
        When each op ends, by its name, if no traffic slows compute down.
    lost
        The share of every second of traffic by which compute falls behind: 1 - 1 / compute_slowdown.
    extra_s
        For bytes, how much longer an all-reduce takes if it starts while compute runs.
    """

    ready: dict[str, float]
    tail: dict[str, float]
    compute_s: float
    slack_s: float
    total_bytes: int
    lost: float
    ends: dict[str, float]
    extra_s: tuple[tuple[int, float], ...] = ()

    @property
    def backward_s(self) -> float:
        """Until when some op surely runs: no later than the ops end that wait for no gradient."""
        return max(
            max(self.ready.values(), default=0.0), self.compute_s - max(self.tail.values(), default=0.0)
        )

    def extra_of(self, size_bytes: int) -> float:
        """Return how much longer an all-reduce of so many bytes takes if it starts while compute runs."""
        if not self.extra_s:
            return 0.0
        sizes, seconds = zip(*self.extra_s, strict=True)
        return float(numpy.interp(size_bytes, sizes, seconds))

    def later(self, ready_s: float) -> float:
        """Return when a set's calls could start at no extra time, for the least extra time of a call."""
        least = min((seconds for _, seconds in self.extra_s), default=0.0) * (1 - self.lost)
        return max(ready_s, min(ready_s + least, self.backward_s))


class ComputeProgress:
    """How far an op has come that runs all the time; while there is traffic it falls behind."""

    def __init__(self, carried: Iterable[tuple[float, float]], times: DerivedTimes) -> None:
        self._carried = sorted(carried) if times.lost else []
        self._before = [0.0, *accumulate(end_s - start_s for start_s, end_s in self._carried)]
        self._lost = times.lost

    def until(self, moment_s: float) -> float:
        """Return the seconds of compute that are done at a moment, from the window's start."""
        begun = bisect_left(self._carried, (moment_s, 0.0))
        busy_s = self._before[begun]
        if begun:
            busy_s -= max(self._carried[begun - 1][1] - moment_s, 0.0)
        return moment_s - self._lost * busy_s


def derive(profile: Profile, schedule: Schedule) -> DerivedTimes:
    """Return the times that a schedule of its exchange is judged by."""
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    last: dict[str, str] = {}
    for op in profile.ops:
        graph.add_node(op.name)
        graph.add_edges_from((before, op.name) for before in op.deps)
        if op.stream is not None:
            if op.stream in last:
                graph.add_edge(last[op.stream], op.name)
            last[op.stream] = op.name
    duration = {op.name: op.duration_s for op in profile.ops}
    order = list(networkx.topological_sort(graph))
    end: dict[str, float] = {}
    for name in order:
        end[name] = duration[name] + max((end[before] for before in graph.predecessors(name)), default=0.0)
    after: dict[str, float] = {}
    for name in reversed(order):
        after[name] = duration[name] + max((after[later] for later in graph.successors(name)), default=0.0)
    tail = {gradient.name: 0.0 for gradient in profile.gradients}
    for op in profile.ops:
        for name in op.waits_for:
            tail[name] = max(tail[name], after[op.name])
    behind_norm = profile.update == "global-norm" and schedule.exchange != "sharded"
    if schedule.framework is not None or behind_norm:
        # DDP and Horovod end an iteration at a barrier, and a norm needs every gradient: the whole forward
        # pass waits for all of them. In a sharded schedule the norm is an event of its own.
        tail = dict.fromkeys(tail, max(tail.values(), default=0.0))
    compute = max(end.values(), default=0.0)
    window = max(compute, schedule.predicted.iteration_s, schedule.predicted.ideal_iteration_s)
    ready = {gradient.name: end[gradient.producer] for gradient in profile.gradients}
    # Of pushes and pulls, which use two links at once, no slow-down is modeled.
    lost = 0.0 if schedule.exchange == "servers" else 1 - 1 / profile.compute_slowdown
    return DerivedTimes(
        ready=ready,
        tail=tail,
        compute_s=compute,
        slack_s=TOLERANCE * window,
        total_bytes=sum(gradient.size_bytes for gradient in profile.gradients),
        lost=lost,
        ends=end,
        extra_s=profile.load.delta or () if profile.load is not None and profile.workers > 1 else (),
    )


def check_predicted(schedule: Schedule, times: DerivedTimes, derived: dict[str, float]) -> Iterator[str]:
    """Yield the predictions that differ from derived times by their names, and the gap if it does."""
    predicted = schedule.predicted
    for field, seconds in ({"compute_s": times.compute_s} | derived).items():
        stated = getattr(predicted, field)
        if not same(stated, seconds, times):
            yield f"predicted.{field} is {stated!r}, derived {seconds!r}"
    lower = derived["lower_bound_s"]
    own = derived["iteration_s"]
    if lower > own + times.slack_s:
        yield f"predicted.lower_bound_s {lower!r} is above the schedule's own time, {own!r}"
    gap = predicted.iteration_s / lower - 1 if lower else 0.0
    if abs(predicted.gap - gap) > 1e-6:
        yield f"predicted.gap is {predicted.gap!r}, derived {gap!r}"


def same(stated: float, derived: float, times: DerivedTimes) -> bool:
    """Return whether two times in seconds are equal up to rounding."""
    return abs(stated - derived) <= times.slack_s
