"""The second bucketing: ``overlap_preserving_bucketer`` of torch 2.13.

Collectives of one key share a bucket where none of them would lose the ops that hide it. Starts, waits and
these ops keep their order within each process group; no objective guards the result.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from pace.simulation.graph.inductor.overlap import OverlapScheduler
from pace.simulation.graph.inductor.pass_graph import PassGraph, ancestor_bits, stable_sort
from pace.solver.graph.program import COLLECTIVE, WAIT

MOST_BYTES = 2 << 30
MOST_FAILURES = 20

Interval = tuple[int, int]


@dataclass(slots=True)
class _Event:
    """A start, a wait or a hiding op in the timeline of a group, linked to its neighbors."""

    node: int
    position: int
    before: "_Event | None" = None
    behind: "_Event | None" = None

    def link(self, before: "_Event | None", behind: "_Event | None") -> None:
        """Stand between two events."""
        self.before, self.behind = before, behind
        if before is not None:
            before.behind = self
        if behind is not None:
            behind.before = self

    def unlink(self) -> tuple["_Event | None", "_Event | None"]:
        """Leave the timeline; return the neighbors."""
        before, behind = self.before, self.behind
        if before is not None:
            before.behind = behind
        if behind is not None:
            behind.before = before
        self.before = self.behind = None
        return before, behind


@dataclass(slots=True)
class OverlapBuckets:
    """The search for buckets in an order that the scheduler found."""

    graph: PassGraph
    scheduler: OverlapScheduler
    order: list[int]
    max_coll_distance: int
    _at: list[int] = field(init=False)
    _ancestors: list[int] = field(init=False)
    _hiding_ops: set[int] = field(init=False)
    _extra: list[dict[int, None]] = field(init=False)
    _merged: list[dict[int, None]] = field(init=False)
    _timelines: dict[int, dict[int, _Event]] = field(init=False)
    _events: dict[int, _Event] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.graph
        self._at = [0] * len(graph)
        for place, node in enumerate(self.order):
            self._at[node] = place
        extra: list[list[int]] = [list(inputs) for inputs in graph.inputs]
        self._extra = [{} for _ in graph.inputs]
        self._merged = [{node: None} for node in range(len(graph))]
        self._hiding_ops = set()
        for start, hiding in self._hidden():
            for op in hiding:
                extra[op].append(start)
                extra[graph.wait_of[start]].append(op)
        self._ancestors = ancestor_bits(extra, self.order)
        self._timelines = {group: self._timeline(group) for group in self._groups()}
        for start, hiding in self._hidden():
            for op in hiding:
                self._extra[op][start] = None
                self._extra[graph.wait_of[start]][op] = None
            self._hiding_ops |= hiding.keys()

    def run(self) -> tuple[list[int], list[list[int]]]:
        """Return the order of nodes with one node for each bucket, and the members of each bucket."""
        graph = self.graph
        internode = {graph.group[node] for node in self._starts() if graph.is_fsdp_gather[node]}
        of_group: dict[int, list[int]] = defaultdict(list)
        for start in self._starts():
            of_group[graph.group[start]].append(start)
        buckets: list[list[int]] = []
        for group, starts in of_group.items():
            self._events = self._timelines[group]
            of_key: dict[tuple[str, int, int], list[int]] = defaultdict(list)
            for start in starts:
                key = graph.bucket_key[start]
                if key is not None:
                    of_key[key].append(start)
            for members in of_key.values():
                buckets += self._find(members, exposed_first=group in internode)
        return self._sorted(buckets), buckets

    def _starts(self) -> Iterator[int]:
        return iter(self.scheduler.exposed_s)

    def _groups(self) -> list[int]:
        return list(dict.fromkeys(self.graph.group[start] for start in self._starts()))

    def _hidden(self) -> Iterator[tuple[int, dict[int, None]]]:
        """Yield the collectives that are hidden in full, with what hides them."""
        for start, exposed_s in self.scheduler.exposed_s.items():
            if not exposed_s:
                yield start, self.scheduler.hiding[start]

    def _timeline(self, group: int) -> dict[int, _Event]:
        """Return the events of a group by their nodes, and keep their order."""
        graph = self.graph
        events: dict[int, _Event] = {}
        hiding: set[int] = set()
        last: _Event | None = None
        for node in self.order:
            own = graph.group[node] == group
            if own and graph.kind[node] == COLLECTIVE:
                hiding |= self.scheduler.hiding[node].keys()
            elif not (own and graph.kind[node] == WAIT):
                compute = graph.counts_as_compute[node] and graph.kind[node] != WAIT
                if not compute and node not in hiding:
                    continue
            event = _Event(node, len(events))
            event.link(last, None)
            if last is not None:
                self._extra[node][last.node] = None
            events[node] = last = event
        return events

    def _find(self, members: list[int], *, exposed_first: bool) -> list[list[int]]:
        graph = self.graph

        def order(start: int) -> tuple[float, int]:
            total = graph.seconds[start]
            hidden = (total - self.scheduler.exposed_s[start]) / total if total > 0 else 0.0
            return (hidden if exposed_first else 0.0, self._at[start])

        ranked = sorted(members, key=order)
        found = []
        processed: set[int] = set()
        for number, start in enumerate(ranked):
            if start in processed or self._hides(start):
                continue
            bucket, total, failures = [start], graph.size_bytes[start], 0
            processed.add(start)
            for other in ranked[number + 1 : number + 1 + self.max_coll_distance]:
                if total + graph.size_bytes[other] > MOST_BYTES:
                    break
                far = exposed_first and abs(self._at[other] - self._at[start]) > MOST_FAILURES
                if other in processed or far:
                    continue
                if self._joins(bucket, other):
                    bucket.append(other)
                    total += graph.size_bytes[other]
                    processed.add(other)
                    failures = 0
                else:
                    failures += 1
                    if failures >= MOST_FAILURES:
                        break
            if len(bucket) > 1:
                found.append(bucket)
        return found

    def _hides(self, start: int) -> bool:
        return start in self._hiding_ops or self.graph.wait_of[start] in self._hiding_ops

    def _joins(self, bucket: list[int], other: int) -> bool:
        """Put a collective into a bucket if one of four places for its start and wait is valid."""
        if self._hides(other) or any(self._conflicts(member, other) for member in bucket):
            return False
        waits = self.graph.wait_of
        first = bucket[0]
        for start, wait in (
            (first, waits[other]),
            (first, waits[first]),
            (other, waits[other]),
            (other, waits[first]),
        ):
            if self._keeps_hiding(bucket, other, start, wait) and self._merge(first, other, start, wait):
                return True
        return False

    def _conflicts(self, one: int, other: int) -> bool:
        ancestors, waits = self._ancestors, self.graph.wait_of

        def needs(node: int, dep: int) -> bool:
            return bool(ancestors[node] >> dep & 1)

        hiding = self.scheduler.hiding
        return (
            needs(one, other)
            or needs(other, one)
            or needs(waits[one], waits[other])
            or needs(waits[other], waits[one])
            or any(needs(op, waits[other]) for op in hiding[one])
            or any(needs(op, waits[one]) for op in hiding[other])
        )

    def _keeps_hiding(self, bucket: list[int], other: int, start: int, wait: int) -> bool:
        """Return whether no wait would come between a collective and an op that hides it."""
        waits, hiding, events = self.graph.wait_of, self.scheduler.hiding, self._events
        members = [other, *bucket]
        own = {*members, *(waits[member] for member in members)}
        begin, end = events[start].position, events[wait].position
        covers = [events[op].position for member in members for op in hiding[member]]
        if any(not begin < cover < end for cover in covers):
            return False
        executions: list[Interval] = [(begin, end)]
        hidden: list[Interval] = [(begin, cover) for cover in covers]
        latest = max(events[other].position, events[bucket[0]].position)
        earliest = min(events[waits[other]].position, events[waits[bucket[0]]].position)
        event = events[start].behind
        while event is not None and event.position < latest:
            self._collect(event, own, executions, hidden)
            event = event.behind
        event = events[wait].before
        while event is not None and event.position > earliest:
            self._collect(event, own, executions, hidden)
            event = event.before
        return not any(
            outer[0] < inner[0] and inner[1] < outer[1] for inner in hidden for outer in executions
        )

    def _collect(
        self, event: _Event, own: set[int], executions: list[Interval], hidden: list[Interval]
    ) -> None:
        graph, node = self.graph, event.node
        start = graph.start_of.get(node, node)
        if node in own or start not in self.scheduler.exposed_s or start not in self._events:
            return
        begin = self._events[start].position
        executions.append((begin, self._events[graph.wait_of[start]].position))
        hidden += [(begin, self._events[op].position) for op in self.scheduler.hiding[start]]

    def _merge(self, first: int, other: int, start: int, wait: int) -> bool:
        """Merge two collectives at a start and a wait, unless one needs the other."""
        waits = self.graph.wait_of
        moved_start = other if start == first else first
        start_links = self._remove(moved_start)
        if self._has_path(first, other) or self._has_path(other, first):
            self._restore(moved_start, *start_links)
            return False
        self._unite(first, other)
        moved_wait = waits[other] if wait == waits[first] else waits[first]
        wait_links = self._remove(moved_wait)
        if self._has_path(waits[first], waits[other]) or self._has_path(waits[other], waits[first]):
            self._restore(moved_wait, *wait_links)
            del self._merged[first][other]
            self._merged[other] = {other: None}
            self._restore(moved_start, *start_links)
            return False
        self._unite(waits[first], waits[other])
        target_start, target_wait = self._events[start], self._events[wait]
        self._events[other] = self._events[first] = target_start
        self._events[waits[other]] = self._events[waits[first]] = target_wait
        return True

    def _unite(self, one: int, other: int) -> None:
        self._merged[one].update(self._merged[other])
        for node in self._merged[other]:
            self._merged[node] = self._merged[one]

    def _remove(self, node: int) -> tuple[_Event | None, _Event | None]:
        before, behind = self._events[node].unlink()
        if before is not None:
            self._extra[node].pop(before.node, None)
        if behind is not None:
            self._extra[behind.node].pop(node, None)
        if before is not None and behind is not None:
            self._extra[behind.node][before.node] = None
        return before, behind

    def _restore(self, node: int, before: _Event | None, behind: _Event | None) -> None:
        self._events[node].link(before, behind)
        if before is not None:
            self._extra[node][before.node] = None
        if behind is not None:
            self._extra[behind.node][node] = None
            if before is not None:
                self._extra[behind.node].pop(before.node, None)

    def _has_path(self, source: int, target: int) -> bool:
        """Return whether a node is needed by another, in the order of events and with buckets as one node."""
        sources = self._merged[source]
        visited = {target}
        queue = [target]
        while queue:
            for member in self._merged[queue.pop()]:
                for dep in (*self.graph.inputs[member], *self._extra[member]):
                    if dep in sources:
                        return True
                    if dep in visited:
                        continue
                    visited.add(dep)
                    # What the source needs cannot need the source.
                    if not any(self._ancestors[each] >> dep & 1 for each in sources):
                        queue.append(dep)
        return False

    def _sorted(self, buckets: list[list[int]]) -> list[int]:
        """Return the order with one node for each bucket, at the place of its first member."""
        graph = self.graph
        stands_for = list(range(len(graph)))
        for bucket in buckets:
            for member in bucket:
                stands_for[member] = bucket[0]
                stands_for[graph.wait_of[member]] = graph.wait_of[bucket[0]]
        needed: list[dict[int, None]] = [{} for _ in stands_for]
        wanted: list[dict[int, None]] = [{} for _ in stands_for]
        for node, inputs in enumerate(graph.inputs):
            owner = stands_for[node]
            needed[owner].update(dict.fromkeys(stands_for[dep] for dep in inputs if stands_for[dep] != owner))
        for node, extra in enumerate(self._extra):
            owner = stands_for[node]
            for dep in extra:
                other = stands_for[dep]
                if other != owner and owner not in needed[other] and owner not in wanted[other]:
                    wanted[owner][other] = None
        bucket_waits = {graph.wait_of[bucket[0]]: bucket[0] for bucket in buckets}
        nodes = []
        for node in self.order:
            if stands_for[node] != node or node in bucket_waits:
                continue
            nodes.append(node)
            if graph.kind[node] == COLLECTIVE and graph.wait_of[node] in bucket_waits:
                nodes.append(graph.wait_of[node])
        both = [[*needed[node], *wanted[node]] for node in range(len(graph))]
        done = stable_sort(nodes, both)
        if len(done) < len(nodes):
            # Torch drops what would close a cycle; without any of it, the order is that of the inputs alone.
            done = stable_sort(nodes, [list(each) for each in needed])
        return done
