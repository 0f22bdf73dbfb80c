"""The order of nodes: ``OverlapScheduler`` of ``torch._inductor.fx_passes.overlap_scheduling``, torch 2.13.

A heap of ready nodes, those first that the next matrix products need. Whenever a product or another op runs,
collectives that are not hidden yet are issued behind which it can hide.
"""

import heapq
from collections import defaultdict
from dataclasses import dataclass, field

from pace.simulation.graph.inductor.pass_graph import NEVER, PassGraph
from pace.solver.graph.program import COLLECTIVE, OP, WAIT

GIBIBYTE = 1 << 30
Key = tuple[str, int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapLimits:
    """Parameters of ``schedule_overlap_bucketing``; sizes in bytes.

    Attributes
    ----------
    counts_memory
        Whether the pass sees the memory in use. Its tracker counts nothing on the CPU.
    """

    max_in_flight_bytes: int = 5 * GIBIBYTE
    max_compute_pre_fetch: int = 200
    max_coll_distance: int = 200
    max_memory_increase_bytes: int = GIBIBYTE
    max_memory_increase_ratio: float = 0.05
    max_off_bucket_bytes: int = GIBIBYTE // 2
    counts_memory: bool = False


@dataclass(slots=True)
class OverlapScheduler:
    """A run of the pass.

    Attributes
    ----------
    exposed_s
        What of each collective is not hidden behind an op.
    hiding
        The ops that hide each collective, in their order.
    scheduled
        The order found.
    """

    graph: PassGraph
    limits: OverlapLimits
    exposed_s: dict[int, float] = field(init=False)
    hiding: dict[int, dict[int, None]] = field(init=False)
    scheduled: dict[int, None] = field(default_factory=dict)
    _unscheduled: dict[int, None] = field(init=False)
    _in_flight: dict[int, None] = field(default_factory=dict)
    _in_flight_bytes: int = 0
    _on_path: list[tuple[tuple[int, int, int], int]] = field(default_factory=list)
    _off_path: list[tuple[tuple[int, int], int]] = field(default_factory=list)
    _off_bytes: dict[Key, int] = field(default_factory=lambda: defaultdict(int))
    _done_bits: int = 0
    _compute_bits: int = 0
    _next_compute: list[int] = field(init=False)
    _next_scatter: list[int] = field(init=False)
    _compute_index: int = 0
    _missing: list[int] = field(init=False)
    _last_on_path: int = -1
    _memory: int = 0
    _base_memory: list[int] = field(default_factory=list)
    _ahead_bytes: list[int] = field(init=False)
    _allowed_bytes: int = 0
    _uses_left: list[int] = field(init=False)

    def __post_init__(self) -> None:
        graph = self.graph
        starts = [graph.start_of[node] for node in range(len(graph)) if graph.kind[node] == WAIT]
        self.exposed_s = {start: graph.seconds[start] for start in starts}
        self.hiding = {start: {} for start in starts}
        self._unscheduled = dict.fromkeys(starts)
        compute = [node for node in range(len(graph)) if graph.counts_as_compute[node]]
        self._compute_bits = sum(1 << node for node in compute)
        self._next_compute = self._first_needing(compute)
        self._next_scatter = self._first_needing([n for n in range(len(graph)) if graph.is_scatter[n]])
        self._missing = [len(needed) for needed in graph.inputs]
        self._ahead_bytes = [0] * len(compute)
        self._measure()
        for node in range(len(graph)):
            if not self._missing[node]:
                self._push(node)

    def run(self) -> list[int]:
        """Return all nodes in the order in which the pass puts them."""
        while self._on_path or self._off_path:
            if self._in_flight and self._in_flight_bytes >= self.limits.max_in_flight_bytes:
                self._wait(self._oldest_wait())
                continue
            for node in self._next_nodes():
                if node in self.scheduled:
                    continue
                if self.graph.kind[node] == COLLECTIVE:
                    self._start(node)
                elif self.graph.kind[node] == WAIT:
                    self._wait(node)
                else:
                    self._compute(node)
                if not self._is_off_path(node):
                    self._last_on_path = max(self._last_on_path, node)
                elif node in self.exposed_s:
                    self._off_bytes[self.graph.bucket_key[node]] -= self.graph.size_bytes[node]
        return list(self.scheduled)

    def _first_needing(self, targets: list[int]) -> list[int]:
        """Return for each node the number of the first target that needs it, or that it is; else NEVER."""
        first = [NEVER] * len(self.graph)
        for number, node in enumerate(targets):
            first[node] = number
        for node in range(len(first) - 1, -1, -1):
            if first[node] == NEVER:
                first[node] = min((first[user] for user in self.graph.users[node]), default=NEVER)
        return first

    def _measure(self) -> None:
        """Measure the memory in use before each compute node in program order."""
        graph = self.graph
        self._uses_left = self._count_uses()
        self._memory = graph.resident_bytes if self.limits.counts_memory else 0
        highest = peak = self._memory
        for node in range(len(graph)):
            self._account(node)
            highest = max(highest, self._memory)
            if graph.counts_as_compute[node]:
                self._base_memory.append(highest)
                highest = self._memory
            peak = max(peak, self._memory)
        more = max(self.limits.max_memory_increase_bytes, int(peak * self.limits.max_memory_increase_ratio))
        self._allowed_bytes = peak + more
        self._memory = graph.resident_bytes if self.limits.counts_memory else 0
        self._uses_left = self._count_uses()

    def _count_uses(self) -> list[int]:
        left = [0] * len(self.graph.storage_bytes)
        for uses in self.graph.uses:
            for storage in uses:
                left[storage] += 1
        return left

    def _account(self, node: int) -> None:
        if not self.limits.counts_memory:
            return
        self._memory += self.graph.allocates[node]
        for storage in self.graph.uses[node]:
            self._uses_left[storage] -= 1
            if not self._uses_left[storage] and not self.graph.kept[storage]:
                self._memory -= self.graph.storage_bytes[storage]

    def _is_off_path(self, node: int) -> bool:
        return self._next_compute[node] == NEVER

    def _push(self, node: int) -> None:
        graph = self.graph
        if self._is_off_path(node):
            no_scatter = int(self._next_scatter[node] == NEVER)
            heapq.heappush(self._off_path, ((no_scatter, node), node))
            if node in self.exposed_s:
                self._off_bytes[graph.bucket_key[node]] += graph.size_bytes[node]
            return
        local = -1 if self._leads_to_collective(node) else 0
        if graph.kind[node] == WAIT:
            local = int(self.exposed_s[graph.start_of[node]] != 0)
        heapq.heappush(self._on_path, ((self._next_compute[node], local, node), node))

    def _leads_to_collective(self, node: int) -> bool:
        """Return whether only cheap ops of one input stand between a node and a collective to be issued."""
        graph = self.graph
        while len(graph.users[node]) == 1:
            (user,) = graph.users[node]
            if len(graph.inputs[user]) != 1:
                return False
            if user in self._unscheduled:
                return True
            if graph.kind[user] != OP or graph.counts_as_compute[user]:
                return False
            node = user
        return False

    def _next_nodes(self) -> list[int]:
        if self._off_path:
            node = self._off_path[0][1]
            if self._is_due(node):
                heapq.heappop(self._off_path)
                return [node] if node not in self.exposed_s else self._batch(node)
        if not self._on_path:
            return [heapq.heappop(self._off_path)[1]]
        return [heapq.heappop(self._on_path)[1]]

    def _is_due(self, node: int) -> bool:
        """Return whether a node that no compute needs runs now."""
        graph = self.graph
        if not self._on_path or node in self.scheduled:
            return True
        if graph.kind[node] == WAIT:
            return not self.exposed_s[graph.start_of[node]] or self._memory > self._allowed_bytes
        if node in self.exposed_s:
            return self._off_bytes[graph.bucket_key[node]] >= self.limits.max_off_bucket_bytes
        return self._next_scatter[node] != NEVER and node <= self._last_on_path

    def _batch(self, node: int) -> list[int]:
        """Return a collective with ready ones of its key, up to the size of such a batch."""
        graph = self.graph
        key = graph.bucket_key[node]
        if key is None:
            return [node]
        batch, total, rest = [node], graph.size_bytes[node], []
        for entry in self._off_path:
            other = entry[1]
            fits = (
                other not in self.scheduled
                and other in self.exposed_s
                and graph.bucket_key[other] == key
                and total + graph.size_bytes[other] <= self.limits.max_off_bucket_bytes
            )
            if fits:
                batch.append(other)
                total += graph.size_bytes[other]
            else:
                rest.append(entry)
        if len(batch) > 1:
            self._off_path = rest
            heapq.heapify(self._off_path)
        return batch

    def _schedule(self, node: int) -> None:
        self.scheduled[node] = None
        self._done_bits |= 1 << node
        self._account(node)
        for user in self.graph.users[node]:
            self._missing[user] -= 1
            if not self._missing[user]:
                self._push(user)

    def _compute(self, node: int) -> None:
        graph = self.graph
        if graph.seconds[node] or graph.counts_as_compute[node]:
            left = self._hide_in_flight(node, graph.seconds[node], None)
            self._issue_behind(node, left, None)
        self._schedule(node)
        if graph.counts_as_compute[node]:
            self._compute_index += 1

    def _start(self, node: int) -> None:
        self._in_flight[node] = None
        self._in_flight_bytes += self.graph.size_bytes[node]
        self._unscheduled.pop(node, None)
        self._schedule(node)

    def _oldest_wait(self) -> int:
        return self.graph.wait_of[next(iter(self._in_flight))]

    def _wait(self, node: int) -> None:
        """Wait for a collective, after those of its group that are before it."""
        graph = self.graph
        if node in self.scheduled:
            return
        start = graph.start_of[node]
        before = []
        for other in self._in_flight:
            if other == start:
                break
            if graph.group[other] == graph.group[start]:
                before.append(other)
        for other in before:
            self._wait(graph.wait_of[other])
        if self.exposed_s[start] > 0:
            left = self._hide_in_flight(node, self.exposed_s[start], graph.group[start])
            self._issue_behind(node, left, graph.group[start])
        if node in self.scheduled:
            return
        self._in_flight_bytes -= graph.size_bytes[start]
        del self._in_flight[start]
        self._schedule(node)

    def _hide_in_flight(self, node: int, seconds: float, excluded: int | None) -> dict[int, float]:
        """Hide collectives in flight behind a node; return what each group has left of its time."""
        groups = dict.fromkeys(self.graph.group[start] for start in self.exposed_s)
        left = {group: seconds for group in groups if group != excluded}
        for start in self._in_flight:
            group = self.graph.group[start]
            if self.exposed_s[start] and group != excluded and left[group] > 0:
                hidden = min(self.exposed_s[start], left[group])
                self.exposed_s[start] -= hidden
                left[group] -= hidden
                self.hiding[start][node] = None
        return left

    def _issue_behind(self, node: int, left: dict[int, float], excluded: int | None) -> None:
        """Issue collectives that a node can hide."""
        graph = self.graph
        if all(seconds <= 0 for seconds in left.values()):
            return
        for start in self._candidates(left, excluded):
            group = graph.group[start]
            if left[group] <= 0 or graph.related(node, start) or self._exceeds_memory(start):
                continue
            size = graph.size_bytes[start]
            limit = self.limits.max_in_flight_bytes
            while self._in_flight and limit - self._in_flight_bytes < size:
                oldest = next(iter(self._in_flight))
                if self.exposed_s[oldest] or node in self.hiding[oldest]:
                    break
                self._wait(graph.wait_of[oldest])
            if limit - self._in_flight_bytes < size:
                continue
            path = self._path_to(start, node)
            if path is None:
                continue
            for each in path:
                if graph.kind[each] == WAIT:
                    if each not in self.scheduled:
                        self._wait(each)
                else:
                    self._schedule(each)
            self._start(start)
            if not self._is_off_path(start):
                for index in range(self._compute_index, self._next_compute[start]):
                    self._ahead_bytes[index] += size
            hidden = min(left[group], self.exposed_s[start])
            self.exposed_s[start] -= hidden
            self.hiding[start][node] = None
            left[group] -= hidden
            if sum(left.values()) == 0:
                return

    def _candidates(self, left: dict[int, float], excluded: int | None) -> list[int]:
        graph = self.graph
        found = []
        for start in self._unscheduled:
            group = graph.group[start]
            if group == excluded or left.get(group, 0.0) <= 0:
                continue
            distance = self._next_compute[start] - self._compute_index
            if not self._is_off_path(start) and distance > self.limits.max_compute_pre_fetch:
                continue
            found.append(start)
            if len(found) >= self.limits.max_coll_distance:
                break
        priority = {start: self._priority(start, left) for start in found}
        of_key: dict[Key, list[int]] = defaultdict(list)
        for start in sorted(found, key=priority.__getitem__):
            of_key[graph.bucket_key[start]].append(start)
        ranked = sorted(of_key.values(), key=lambda starts: (priority[starts[0]], -len(starts)))
        return [start for starts in ranked for start in starts]

    def _priority(self, start: int, left: dict[int, float]) -> tuple[int, int, float, int]:
        off_path = self._is_off_path(start)
        if self._next_compute[start] == self._compute_index + 1:
            rank = 0
        elif off_path:
            rank = 3 if self._next_scatter[start] == NEVER else 1
        else:
            rank = 2
        hidden = min(left.get(self.graph.group[start], 0.0), self.exposed_s[start])
        return rank, self._next_compute[start], -hidden, start

    def _exceeds_memory(self, start: int) -> bool:
        if self._is_off_path(start):
            return False
        size = self.graph.size_bytes[start]
        if self._memory + size > self._allowed_bytes:
            return True
        for index in range(self._compute_index, self._next_compute[start]):
            ahead = self._ahead_bytes[index] + size
            if ahead > self.limits.max_in_flight_bytes:
                return True
            if self._base_memory[index] + ahead > self._allowed_bytes:
                return True
        return False

    def _path_to(self, start: int, node: int) -> list[int] | None:
        """Return what must run before a collective, or None if that is compute or would expose another."""
        graph = self.graph
        missing = graph.ancestors[start] & ~self._done_bits
        if missing & self._compute_bits:
            return None
        path = []
        while missing:
            each = (missing & -missing).bit_length() - 1
            missing &= missing - 1
            if each in self._unscheduled:
                return None
            if graph.kind[each] == WAIT:
                waited = graph.start_of[each]
                if self.exposed_s[waited] or node in self.hiding[waited]:
                    return None
            path.append(each)
        return path
