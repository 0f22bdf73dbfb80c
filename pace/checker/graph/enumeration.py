"""Whether no plan of a small graph ends before a schedule says: every order and every bucket, compared again.

A plan is followed step by step; a step is an op, a wait, a collective or a bucket. It is given up where what
is left takes too long, where memory is too small, and where another plan has run the same steps and no time
of it is later. This is exact, and shares no code with the planner.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pace.checker.graph.replay import Prices
from pace.documents.graph.collective_graph import CollectiveGraph

MOST_WORK = 20_000_000
"""A comparison that looks at more numbers is given up, after some seconds. PACE's plans take 2 % of this."""
ROUNDING = 1e-9

Buckets = tuple[tuple[str, ...], ...]
Reached = dict[frozenset[int], list[tuple[float, ...]]]
"""By the steps that ran, the times of each plan: when compute and each wire are free, and each call ends."""


class TooManyPlans(Exception):
    """More plans than can be compared."""


class _Work:
    """What a comparison may still do, however large the graph and whatever the schedule says."""

    def __init__(self) -> None:
        self._left = MOST_WORK

    def spend(self, numbers: int) -> None:
        """Look at so many numbers; raises TooManyPlans."""
        self._left -= numbers
        if self._left < 0:
            raise TooManyPlans


def ends_before(
    graph: CollectiveGraph, seconds: float, budget_bytes: int | None, tail: Mapping[str, float]
) -> bool:
    """Return whether a plan within a budget ends before so many seconds.

    Parameters
    ----------
    tail
        Least seconds that follow each node in every plan.

    Raises
    ------
    TooManyPlans
        If there are more than can be compared.
    """
    work = _Work()
    before = seconds * (1 - ROUNDING)
    for buckets in _bucketings(graph):
        steps = _Steps(graph, buckets, tail, work)
        if sum(steps.seconds) >= before:
            continue
        reached: Reached = {frozenset(): [(0.0,) * (1 + len(graph.wires) + steps.num_calls)]}
        for _ in steps.names:
            reached = steps.follow(reached, before, budget_bytes)
        if reached:
            return True
    return False


def _bucketings(graph: CollectiveGraph) -> Iterator[Buckets]:
    """Yield the ways to put all collectives into buckets, each of one key and of none that need another."""
    keys = {node.name: graph.bucket_key(node) for node in graph.nodes if node.collective is not None}
    needs: dict[str, frozenset[str]] = {}  # the collectives that a node needs
    for node in graph.nodes:
        before = frozenset(dep for dep in node.deps if dep in keys)
        needs[node.name] = before.union(*(needs[dep] for dep in node.deps))

    def extend(left: list[str], parts: Buckets) -> Iterator[Buckets]:
        if not left:
            yield parts
            return
        first, *others = left
        yield from extend(others, (*parts, (first,)))
        for at, part in enumerate(parts):
            if keys[part[0]] == keys[first] and needs[first].isdisjoint(part):
                yield from extend(others, (*parts[:at], (*part, first), *parts[at + 1 :]))

    return extend(list(keys), ())


class _Steps:
    """The steps of a graph with some buckets: first the calls, then the wait of each, then ops."""

    def __init__(
        self, graph: CollectiveGraph, buckets: Buckets, tail: Mapping[str, float], work: _Work
    ) -> None:
        nodes = {node.name: node for node in graph.nodes}
        waits = {node.waits_for: node.name for node in graph.nodes if node.waits_for is not None}
        ops = [node.name for node in graph.nodes if node.collective is None and node.waits_for is None]
        self.num_calls = len(buckets)
        self.names = [
            *buckets,
            *(tuple(waits[name] for name in bucket) for bucket in buckets),
            *((name,) for name in ops),
        ]
        self._num_wires = len(graph.wires)
        self._slowdown = graph.compute_slowdown
        step_of = {name: step for step, names in enumerate(self.names) for name in names}
        self._needs = [
            frozenset(step_of[dep] for name in names for dep in nodes[name].deps) for names in self.names
        ]
        self._tails = [max(tail[name] for name in names) for names in self.names]
        price, wires = (
            Prices(graph),
            {each.name: graph.wires.index(each.wire) for each in graph.communicators},
        )
        self.seconds = [0.0] * (2 * len(buckets)) + [nodes[name].duration_s for name in ops]
        self._buffers = [0] * len(buckets)
        self._wire, self._transfer = [], []
        for number, bucket in enumerate(buckets):
            calls = [call for name in bucket if (call := nodes[name].collective) is not None]
            sent, got = sum(call.input_bytes for call in calls), sum(call.output_bytes for call in calls)
            self._wire.append(wires[calls[0].communicator])
            self._transfer.append(price(calls[0].communicator, calls[0].op, sent))
            if len(bucket) > 1:
                self._buffers[number] = sent + got
                self.seconds[number] = 2 * sent / graph.copy_bytes_per_s
                self.seconds[number + len(buckets)] = 2 * got / graph.copy_bytes_per_s
        self._resident = graph.resident_bytes
        self._storages = _storages(graph, buckets, step_of)
        self._work = work
        self._size = sum(map(len, (self.names, *self._needs, *(each.readers for each in self._storages))))
        work.spend(self._size)

    def follow(self, reached: Reached, before: float, budget_bytes: int | None) -> Reached:
        """Return what follows by one more step that may still end before so many seconds."""
        following: Reached = {}
        for done, times in reached.items():
            self._work.spend(self._size)
            for step in range(len(self.names)):
                if step in done or not self._needs[step] <= done:
                    continue
                self._work.spend(self._size)
                if budget_bytes is not None and self._bytes(done, step) > budget_bytes:
                    continue
                ran = done | {step}
                kept = following.get(ran, [])
                for each in times:
                    self._work.spend(len(self.names) + len(kept))
                    new = self._times(step, each)
                    if self._least_s(ran, new) < before and not any(_no_later(old, new) for old in kept):
                        kept = [old for old in kept if not _no_later(new, old)] + [new]
                if kept:
                    following[ran] = kept
        return following

    def _bytes(self, done: frozenset[int], running: int) -> int:
        """Return what is in use while a step runs after others."""
        ran = done | {running}
        total = self._resident
        for each in self._storages:
            if each.allocated in ran and (each.is_kept or not each.readers <= done):
                total += each.size_bytes
        for number, size in enumerate(self._buffers):
            if number in ran and number + self.num_calls not in done:
                total += size
        return total

    def _times(self, step: int, times: tuple[float, ...]) -> tuple[float, ...]:
        """Return the times after a step. What is past counts as now, so that times can be compared."""
        calls = 1 + self._num_wires
        now, *later = times
        if self.num_calls <= step < 2 * self.num_calls:
            now = max(now, times[calls + step - self.num_calls])
        slow = max(0.0, min(max(later[: self._num_wires]) - now, self.seconds[step] * self._slowdown))
        now += slow + self.seconds[step] - slow / self._slowdown
        if step < self.num_calls:
            wire = self._wire[step]
            later[wire] = max(now, later[wire]) + self._transfer[step]
            later[self._num_wires + step] = later[wire]
        return now, *(max(now, each) for each in later)

    def _least_s(self, ran: frozenset[int], times: tuple[float, ...]) -> float:
        """Return when what is left ends at the earliest: on the compute stream, on wires, behind calls."""
        left = [step for step in range(len(self.names)) if step not in ran]
        least = times[0] + sum(self.seconds[step] for step in left)
        for wire in range(self._num_wires):
            calls = [step for step in left if step < self.num_calls and self._wire[step] == wire]
            behind = min((self._tails[step] for step in calls), default=0.0)
            least = max(least, times[1 + wire] + sum(self._transfer[step] for step in calls) + behind)
        for step in left:
            own = self.seconds[step] + self._tails[step]
            if step < self.num_calls:
                own += self._transfer[step]
            call = step - self.num_calls
            flies = 0 <= call < self.num_calls and call in ran
            least = max(least, (times[1 + self._num_wires + call] if flies else times[0]) + own)
        return least


@dataclass(frozen=True, slots=True, kw_only=True)
class _Storage:
    """Memory that one step allocates and others read."""

    size_bytes: int
    is_kept: bool
    allocated: int
    readers: frozenset[int]


def _storages(graph: CollectiveGraph, buckets: Buckets, step_of: Mapping[str, int]) -> list[_Storage]:
    fused = {name for bucket in buckets if len(bucket) > 1 for name in bucket}
    owner: dict[str, str] = {}
    for node in graph.nodes:
        shared = node.waits_for or node.view_of
        owner[node.name] = owner[shared] if shared is not None else node.name
    waits = {node.waits_for: step_of[node.name] for node in graph.nodes if node.waits_for is not None}
    readers: dict[str, set[int]] = {name: set() for name in owner.values()}
    for node in graph.nodes:
        # The input of a single collective is in use until its wait; that of a bucket is copied.
        step = step_of[node.name]
        if node.collective is not None and node.name not in fused:
            step = waits[node.name]
        for dep in node.deps:
            readers[owner[dep]].add(step)
    kept = {owner[node.name] for node in graph.nodes if node.returned}
    found = []
    for node in graph.nodes:
        size = node.allocates_bytes if node.collective is None else node.collective.output_bytes
        if size:
            step = waits[node.name] if node.name in fused else step_of[node.name]
            found.append(
                _Storage(
                    size_bytes=size,
                    is_kept=node.name in kept,
                    allocated=step,
                    readers=frozenset({step, *readers[node.name]}),
                )
            )
    return found


def _no_later(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(mine <= its for mine, its in zip(one, other, strict=True))
