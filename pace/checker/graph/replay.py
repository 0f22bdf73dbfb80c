"""A schedule of a graph played back: what is on the compute stream, on each wire and in memory."""

from collections import Counter
from dataclasses import dataclass

from pace.checker.collective_times import allreduce_s
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.schedule import Schedule


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
