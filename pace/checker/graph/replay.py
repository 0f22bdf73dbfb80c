"""A schedule of a graph played back: what is on the compute stream, on each wire and in memory.

What stays in memory when a node runs, because ops run behind it that need it, is here too.
"""

import math
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass

from pace.checker.collective_times import allreduce_s
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.schedule import Schedule

DEEPEST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a schedule does.

    Attributes
    ----------
    transfers
        Start and end of each group on its wire.
    """

    end_s: float
    transfers: dict[int, tuple[float, float]]
    peak_bytes: int
    peak_node: str


class Prices:
    """What collectives of a graph cost, by communicator, op and bytes, if they are some times as fast."""

    def __init__(self, graph: CollectiveGraph, *, faster: float = 1.0) -> None:
        self._faster = faster
        self._costs = {
            (each.name, cost.op): (cost.cost, each.ranks)
            for each in graph.communicators
            for cost in each.costs
        }
        self._known: dict[tuple[str, str, int], float] = {}

    def __call__(self, communicator: str, op: str, size_bytes: int) -> float:
        """Return what one collective of so many bytes takes, in seconds."""
        key = communicator, op, size_bytes
        if key not in self._known:
            for (name, each), (document, ranks) in self._costs.items():
                if (name, each) == (communicator, op):
                    self._known[key] = allreduce_s(document, ranks, size_bytes) / self._faster
        return self._known[key]


def replay(graph: CollectiveGraph, schedule: Schedule) -> Replay:
    """Play an order whose nodes come after what they read, and whose buckets are in one piece."""
    price = Prices(graph)
    wires = {each.name: each.wire for each in graph.communicators}
    group_of = {name: number for number, group in enumerate(schedule.groups) for name in group.tensors}
    by_name = {node.name: node for node in graph.nodes}
    owner: dict[str, str] = {}
    size: dict[str, int] = {}
    for node in graph.nodes:
        shared = node.waits_for or node.view_of
        owner[node.name] = owner[shared] if shared is not None else node.name
        size[node.name] = node.allocates_bytes if node.collective is None else node.collective.output_bytes
    returned = {owner[node.name] for node in graph.nodes if node.returned}
    fused = {name for group in schedule.groups if len(group.tensors) > 1 for name in group.tensors}

    # How many readers of each storage have not run. A collective alone reads until its wait.
    readers: Counter[str] = Counter()
    reads: dict[str, list[str]] = {}
    for node in graph.nodes:
        reads[node.name] = sorted({owner[dep] for dep in node.deps})
    for node in graph.nodes:
        if node.waits_for is not None and node.waits_for not in fused:
            reads[node.name] = sorted({*reads[node.name], *reads[node.waits_for]})
    for names in reads.values():
        readers.update(names)

    now = 0.0
    free: dict[str, float] = dict.fromkeys(graph.wires, 0.0)
    transfers: dict[int, tuple[float, float]] = {}
    copied: set[int] = set()
    memory = peak = graph.resident_bytes
    peak_node = ""

    def compute(seconds: float) -> None:
        """Run compute, at the rate 1 / compute_slowdown until all wires are free."""
        nonlocal now
        slow = max(0.0, min(max(free.values()) - now, seconds * graph.compute_slowdown))
        now += slow + seconds - slow / graph.compute_slowdown

    def allocate(bytes_: int, node: str) -> None:
        nonlocal memory, peak, peak_node
        memory += bytes_
        if memory > peak:
            peak, peak_node = memory, node

    def release(names: list[str]) -> None:
        nonlocal memory
        for name in names:
            readers[name] -= 1
            if not readers[name] and name not in returned:
                memory -= size[name]

    for number in schedule.graph_plan.order:
        node = graph.nodes[number]
        name = node.name
        call = node.collective
        if call is not None:
            group = group_of[name]
            members = schedule.groups[group].tensors
            calls = [member.collective for member in map(by_name.__getitem__, members) if member.collective]
            sent, got = sum(each.input_bytes for each in calls), sum(each.output_bytes for each in calls)
            if group not in transfers:
                bucketed = len(members) > 1
                compute(2 * sent / graph.copy_bytes_per_s if bucketed else 0.0)
                start = max(now, free[wires[call.communicator]])
                end = start + price(call.communicator, call.op, sent)
                free[wires[call.communicator]] = end
                transfers[group] = start, end
                allocate(sent + got if bucketed else call.output_bytes, name)
                release([each for member in members for each in reads[member]])
            continue
        if node.waits_for is not None:
            group = group_of[node.waits_for]
            members = schedule.groups[group].tensors
            now = max(now, transfers[group][1])
            if len(members) > 1 and group not in copied:
                copied.add(group)
                calls = [
                    member.collective for member in map(by_name.__getitem__, members) if member.collective
                ]
                sent, got = sum(each.input_bytes for each in calls), sum(each.output_bytes for each in calls)
                compute(2 * got / graph.copy_bytes_per_s)
                allocate(got, name)
                memory -= sent + got
            release(reads[name])
            continue
        compute(node.duration_s)
        allocate(size[name], name)
        release(reads[name])
        if not readers[name] and owner[name] == name and name not in returned:
            memory -= size[name]  # nobody reads it
    return Replay(
        end_s=max(now, *free.values()),
        transfers=transfers,
        peak_bytes=peak,
        peak_node=peak_node,
    )


class MemoryBehind:
    """Memory of a graph when one node runs, in every plan."""

    def __init__(self, graph: CollectiveGraph, node_name: str) -> None:
        self._graph, self._needed = graph, {node_name}
        for node in reversed(graph.nodes):
            if node.name in self._needed:
                self._needed.update(node.deps)
        owner: dict[str, str] = {}
        size: dict[str, int] = {}
        behind = {node_name}
        used = {node_name}
        returned: set[str] = set()
        self._reads: dict[str, list[str]] = {}
        for node in graph.nodes:
            shared = node.waits_for or node.view_of
            owner[node.name] = owner[shared] if shared is not None else node.name
            size[node.name] = (
                node.allocates_bytes if node.collective is None else node.collective.output_bytes
            )
            self._reads[node.name] = [owner[dep] for dep in node.deps]
            if not behind.isdisjoint(node.deps):
                behind.add(node.name)
            if node.name in behind:
                used.update(self._reads[node.name])
            if node.returned:
                returned.add(owner[node.name])
        used.update(returned)
        always = {name for name in used & self._needed if size[name]}
        self._left = {name: 0 if name in always or name in returned else size[name] for name in size}
        self._spent: set[str] = set()
        self.in_use_bytes = graph.resident_bytes + sum(size[name] for name in always)
        """Bytes in use in every plan: allocated before the node and read by it or behind it, or returned.

        What is returned and made behind the node counts as what it is made from.
        """
        for name, bytes_ in size.items():
            if name in returned and name not in always and bytes_:
                self.in_use_bytes += self._flow(name, bytes_, 0)

    def held_bytes(self, price: float, behind: Set[str]) -> dict[str, int]:
        """Return for each op of some that run behind the node how many bytes it keeps in use.

        They are a flow. If all of these ops run behind the node, what they keep is different memory, so it
        adds up. Each op keeps what is worth its time at a price in seconds per byte, or less.
        """
        before = self._left.copy(), self._spent.copy()
        held = {
            node.name: self._flow(node.name, math.ceil(node.duration_s / price), 0)
            for node in self._graph.nodes
            if node.name in behind and node.collective is None and node.duration_s > 0
        }
        self._left, self._spent = before
        return held

    def _flow(self, name: str, wanted: int, depth: int) -> int:
        """Take bytes of what a node reads, or of what that is made from; return how many there were."""
        found = 0
        for storage in self._reads[name]:
            part = min(wanted - found, self._left[storage])
            if part and storage not in self._needed:
                if storage in self._spent or depth == DEEPEST:
                    continue
                part = self._flow(storage, part, depth + 1)
            self._left[storage] -= part
            found += part
            if found == wanted:
                return found
        self._spent.add(name)
        return found
