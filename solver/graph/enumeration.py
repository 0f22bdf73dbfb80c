"""The fastest plan and the leanest plan of a small program, among all orders and all choices of buckets.

Nodes are run one by one. The memory in use, and what may run next, depend only on the set of nodes that have
run. The times do not, but a state is dropped if another of the same set has no later time: when the compute
stream and each wire are free, and when each collective under way ends. For every order that continues the
first state, the same order continues the other and ends no later, because a plan's times only add up and take
maxima, and compute never ends later if it starts earlier or a wire is free earlier. A state is also dropped
if what is left takes too long: on the compute stream, on a wire, or along a path. What remains is exact. The
number of states may be exponential, so both functions give up at a limit.

Some nodes run at once, because no plan gains by running them later: a node that takes no time and no memory,
and a collective that all other collectives of its wire that are left have to follow.
"""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import le
from typing import NamedTuple

import numpy as np

from pace.solver.graph.fused_program import FusedProgram, fuse
from pace.solver.graph.list_schedule import UNLIMITED
from pace.solver.graph.program import COLLECTIVE, OP, WAIT, Bucket, Program, ProgramPlan, beside_traffic_s

MOST_BUCKETINGS = 1000
ROUNDING = 1e-12

Times = tuple[float, ...]
"""When the compute stream is free, then each wire, then when each collective under way ends, by its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enumeration:
    """What an enumeration found.

    Attributes
    ----------
    plan
        The best plan; None if no plan is better than what was asked for.
    is_complete
        Whether all plans were compared, so that no plan is better than `plan`, or than what was asked for.
    num_states
        Number of states that were continued.
    """

    plan: ProgramPlan | None
    is_complete: bool
    num_states: int


def fastest_plan(program: Program, budget_bytes: int, most_s: float, most_states: int) -> Enumeration:
    """Return the fastest plan within a memory budget that ends before `most_s`."""
    best: ProgramPlan | None = None
    left = most_states
    for buckets in _bucketings(program):
        if buckets is None:
            return Enumeration(plan=best, is_complete=False, num_states=most_states - left)
        copies = sum(program.copy_in_s(bucket) + program.copy_out_s(bucket) for bucket in buckets)
        if float(program.duration.sum()) + copies >= most_s * (1 - ROUNDING):
            continue
        orders = _Orders(program, buckets, budget_bytes)
        found = orders.fastest(most_s, left)
        left = found.left
        if found.order is not None:
            most_s = found.end_s
            best = orders.plan(found.order)
        if left < 0:
            return Enumeration(plan=best, is_complete=False, num_states=most_states)
    return Enumeration(plan=best, is_complete=True, num_states=most_states - left)


def leanest_plan(program: Program, most_states: int) -> Enumeration:
    """Return a plan with the least peak memory."""
    best: ProgramPlan | None = None
    least = UNLIMITED
    left = most_states
    for buckets in _bucketings(program):
        if buckets is None:
            return Enumeration(plan=best, is_complete=False, num_states=most_states - left)
        orders = _Orders(program, buckets, UNLIMITED)
        peak, order, left = orders.leanest(least, left)
        if order is not None:
            least = peak
            best = orders.plan(order)
        if left < 0:
            return Enumeration(plan=best, is_complete=False, num_states=most_states)
    return Enumeration(plan=best, is_complete=True, num_states=most_states - left)


def _bucketings(program: Program) -> Iterator[tuple[Bucket, ...] | None]:
    """Yield every choice of buckets, without buckets first; None at the end if there are too many."""
    needs = [1 << node for node in range(len(program))]
    for node in range(len(program)):
        for dep in program.deps[node].tolist():
            needs[node] |= needs[dep]

    def extend(left: list[int], parts: tuple[Bucket, ...]) -> Iterator[tuple[Bucket, ...]]:
        if not left:
            yield tuple(part for part in parts if len(part) > 1)
            return
        first, *others = left
        yield from extend(others, (*parts, (first,)))
        for at, part in enumerate(parts):
            same_key = program.key[part[0]] == program.key[first]
            if same_key and not any(needs[first] >> member & 1 for member in part):
                yield from extend(others, (*parts[:at], (*part, first), *parts[at + 1 :]))

    every = extend(program.collectives().tolist(), ())
    yield from islice(every, MOST_BUCKETINGS)
    if next(every, None) is not None:
        yield None


class _Step(NamedTuple):
    """A state: how it was reached, its times, and the peak memory up to here."""

    times: Times
    peak: int
    node: int
    before: "_Step | None"

    def order(self) -> list[int]:
        """Return the nodes that have run."""
        nodes = []
        step: _Step | None = self
        while step is not None and step.before is not None:
            nodes.append(step.node)
            step = step.before
        return nodes[::-1]


@dataclass(slots=True)
class _Done:
    """A set of nodes that have run: what is left and what is in memory, and the states that reach it."""

    flying: tuple[int, ...]  # waits whose collectives are under way
    memory: int
    compute_s: float
    wires_s: Times
    steps: list[_Step]


class _Fastest(NamedTuple):
    end_s: float
    order: list[int] | None
    left: int


class _Orders:
    """All orders of a program with given buckets under a memory budget."""

    def __init__(self, program: Program, buckets: tuple[Bucket, ...], budget_bytes: int) -> None:
        self._fused = fused = fuse(program, buckets)
        self._buckets = buckets
        self._budget = budget_bytes
        self._wires = range(program.num_wires)
        self._slowdown = program.compute_slowdown
        self._kind, self._wire = fused.kind.tolist(), fused.wire.tolist()
        self._seconds, self._transfer = fused.seconds.tolist(), fused.transfer.tolist()
        self._nodes = range(len(self._kind))
        self._whole = (1 << len(self._kind)) - 1
        self._needs = [_mask(fused.deps[node].tolist()) for node in self._nodes]
        self._nexts = [fused.nexts[node].tolist() for node in self._nodes]
        self._waits = [
            next((after for after in self._nexts[node] if self._kind[after] == WAIT), -1)
            for node in self._nodes
        ]
        self._set_memory(fused)
        self._set_tails()
        # The collectives of the same wire that do not have to follow each collective.
        self._rivals = [
            _mask(
                other
                for other in self._nodes
                if self._kind[node] == self._kind[other] == COLLECTIVE
                and self._wire[node] == self._wire[other]
                and other != node
                and not self._after[node] >> other & 1
            )
            for node in self._nodes
        ]

    def plan(self, order: list[int]) -> ProgramPlan:
        """Return the plan of an order of the fused program's nodes."""
        spread = self._fused.spread(np.array(order, dtype=np.int64))
        return ProgramPlan(order=spread, buckets=self._buckets)

    def _set_memory(self, fused: FusedProgram) -> None:
        size, kept = fused.storage_bytes.tolist(), fused.kept.tolist()
        users = [0] * len(size)
        for node in self._nodes:
            for storage in fused.uses[node].tolist():
                users[storage] |= 1 << node
        self._fresh = [sum(size[each] for each in fused.fresh[node].tolist()) for node in self._nodes]
        # What each node may free, and who else has to have run for that.
        self._frees = [
            [
                (size[storage], users[storage])
                for storage in {*fused.uses[node].tolist(), *fused.fresh[node].tolist()}
                if size[storage] and not kept[storage]
            ]
            for node in self._nodes
        ]

    def _set_tails(self) -> None:
        """Set what follows each node: the longest path, or all ops behind it one after another."""
        self._after = [0] * len(self._kind)
        self._tail = [0.0] * len(self._kind)
        for node in self._backwards():
            for after in self._nexts[node]:
                self._after[node] |= self._after[after] | 1 << after
                own = self._seconds[after] + self._transfer[after]
                self._tail[node] = max(self._tail[node], own + self._tail[after])
            behind = sum(self._seconds[after] for after in self._nodes if self._after[node] >> after & 1)
            self._tail[node] = max(self._tail[node], behind)

    def _backwards(self) -> list[int]:
        """Return the nodes, last ones first, without those of buckets that need one another."""
        left = [len(after) for after in self._nexts]
        ready = [node for node in self._nodes if not left[node]]
        for node in ready:
            for dep in self._fused.deps[node].tolist():
                left[dep] -= 1
                if not left[dep]:
                    ready.append(dep)
        return ready

    def fastest(self, most_s: float, left: int) -> _Fastest:
        """Return the order that ends first if it ends before `most_s`, and how many states are left."""
        wires_s = [0.0] * len(self._wires)
        for node in self._nodes:
            if self._kind[node] == COLLECTIVE:
                wires_s[self._wire[node]] += self._transfer[node]
        resident = self._fused.program.resident_bytes
        start = _Step((0.0,) * (1 + len(self._wires)), resident, -1, None)
        layer = {0: _Done((), resident, sum(self._seconds), tuple(wires_s), [start])}
        while layer and self._whole not in layer and resident <= self._budget:
            following: dict[int, _Done] = {}
            for done, state in layer.items():
                left -= len(state.steps)
                if left < 0:
                    return _Fastest(most_s, None, left)
                self._continue(done, state, most_s * (1 - ROUNDING), following)
            layer = following
        if self._whole not in layer or not layer[self._whole].steps:
            return _Fastest(most_s, None, left)
        best = min(layer[self._whole].steps, key=lambda step: (step.times[0], step.peak))
        return _Fastest(best.times[0], best.order(), left)

    def _continue(self, done: int, state: _Done, most_s: float, following: dict[int, _Done]) -> None:
        ready = self._ready(done)
        at_once = next((node for node in ready if self._runs_at_once(node, done)), None)
        for node in ready if at_once is None else (at_once,):
            used = state.memory + self._fresh[node]
            if used > self._budget:
                continue
            reached = done | 1 << node
            after = following.get(reached) or self._reached(reached, node, state, used)
            shortest = self._shortest_tails(reached)
            for step in state.steps:
                if at_once is None and self._kind[node] != WAIT and self._may_wait(state, step):
                    continue
                times = self._times(node, state.flying, step.times)
                if self._least_s(times, after, shortest) < most_s:
                    _keep(after.steps, _Step(times, max(step.peak, used), node, step))
            if after.steps:
                following[reached] = after

    def _may_wait(self, state: _Done, step: _Step) -> bool:
        """Return whether a wait costs nothing now, so that it comes first."""
        now = step.times[0]
        ends = step.times[1 + len(self._wires) :]
        return any(
            end <= now and not self._seconds[wait] and not self._fresh[wait]
            for wait, end in zip(state.flying, ends, strict=True)
        )

    def _ready(self, done: int) -> list[int]:
        return [node for node in self._nodes if not done >> node & 1 and not self._needs[node] & ~done]

    def _runs_at_once(self, node: int, done: int) -> bool:
        if self._seconds[node] or (self._fresh[node] and self._budget < UNLIMITED):
            return False
        if self._kind[node] == COLLECTIVE:
            # Of several wires, one that waits may slow compute down less.
            may_wait = self._slowdown > 1 and len(self._wires) > 1
            return not (may_wait or self._rivals[node] & ~done)
        return bool(self._kind[node] == OP)

    def _reached(self, reached: int, node: int, state: _Done, used: int) -> _Done:
        wires_s, flying = list(state.wires_s), state.flying
        if self._kind[node] == COLLECTIVE:
            wires_s[self._wire[node]] -= self._transfer[node]
            flying = (*flying, self._waits[node])
        elif self._kind[node] == WAIT:
            flying = tuple(wait for wait in flying if wait != node)
        flying = tuple(sorted(flying))
        memory = used - self._freed(node, reached)
        return _Done(flying, memory, state.compute_s - self._seconds[node], tuple(wires_s), [])

    def _freed(self, node: int, reached: int) -> int:
        return sum(size for size, users in self._frees[node] if not users & ~reached)

    def _times(self, node: int, flying: tuple[int, ...], times: Times) -> Times:
        """Return the times after a node has run; none of them is in the past."""
        now, count = times[0], 1 + len(self._wires)
        free, ends = list(times[1:count]), dict(zip(flying, times[count:], strict=True))
        if self._kind[node] == WAIT:
            now = max(now, ends.pop(node))
        now += beside_traffic_s(self._seconds[node], max(free) - now, self._slowdown)
        if self._kind[node] == COLLECTIVE:
            wire = self._wire[node]
            free[wire] = max(now, free[wire]) + self._transfer[node]
            ends[self._waits[node]] = free[wire]
        return (now, *(max(now, each) for each in free), *(max(now, ends[wait]) for wait in sorted(ends)))

    def _shortest_tails(self, reached: int) -> Times:
        """Return the longest time that a node takes with what follows it, then each wire's shortest tail."""
        shortest = [np.inf] * len(self._wires)
        longest = 0.0
        for node in self._nodes:
            if not reached >> node & 1:
                longest = max(longest, self._seconds[node] + self._transfer[node] + self._tail[node])
                if self._kind[node] == COLLECTIVE:
                    shortest[self._wire[node]] = min(shortest[self._wire[node]], self._tail[node])
        return (longest, *shortest)

    def _least_s(self, times: Times, after: _Done, tails: Times) -> float:
        """Return when every continuation of a state ends at the earliest."""
        now, count = times[0], 1 + len(self._wires)
        least = now + max(after.compute_s, tails[0])
        for free, seconds, tail in zip(times[1:count], after.wires_s, tails[1:], strict=True):
            if tail < np.inf:
                least = max(least, free + seconds + tail)
        for wait, end in zip(after.flying, times[count:], strict=True):
            least = max(least, end + self._seconds[wait] + self._tail[wait])
        return least

    def leanest(self, below: int, left: int) -> tuple[int, list[int] | None, int]:
        """Return the least peak if it is below another, its order, and how many states are left."""
        resident = self._fused.program.resident_bytes
        heap = [(resident, 0, 0, resident)]  # of equal peaks, the state with most nodes first
        peaks, before = {0: resident}, {0: (-1, 0)}
        while heap and heap[0][0] < below:
            peak, count, done, memory = heapq.heappop(heap)
            if done == self._whole:
                order = []
                while done:
                    node, done = before[done]
                    order.append(node)
                return peak, order[::-1], left
            left -= 1
            if left < 0:
                break
            ready = self._ready(done)
            lightest = [node for node in ready if not self._fresh[node]][:1]
            for node in lightest or ready:
                reached = done | 1 << node
                used = memory + self._fresh[node]
                if max(peak, used) < peaks.get(reached, UNLIMITED):
                    peaks[reached], before[reached] = max(peak, used), (node, done)
                    after = used - self._freed(node, reached)
                    heapq.heappush(heap, (peaks[reached], count - 1, reached, after))
        return below, None, left


def _mask(nodes: Iterable[int]) -> int:
    return sum({1 << node for node in nodes})


def _keep(steps: list[_Step], new: _Step) -> None:
    """Add a state unless another is nowhere later; drop those that it makes superfluous."""
    for old in steps:
        if all(map(le, old.times, new.times)) and (old.times != new.times or old.peak <= new.peak):
            return
    steps[:] = [old for old in steps if not all(map(le, new.times, old.times))]
    steps.append(new)
