"""Whether a schedule's bounds hold for every plan of its graph: heads, tails and sets derived again."""

from collections.abc import Iterator, Sequence

import numpy as np

from pace.checker.graph.enumeration import TooManyPlans, ends_before
from pace.checker.graph.replay import MemoryBehind, Prices
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.graph.plan import EnumeratedPlans, KeyLine, LateCollective, SetOfNodes
from pace.documents.profile import DType
from pace.documents.schedule import Schedule

Times = dict[str, float]


def check_bounds(graph: CollectiveGraph, schedule: Schedule, *, slack_s: float) -> Iterator[str]:
    """Yield why the bounds do not prove predicted.lower_bound_s, and which heads and tails are wrong."""
    plan = schedule.graph_plan
    price = Prices(graph, faster=graph.compute_slowdown if plan.stretch_s else 1.0)
    own = {
        node.name: node.duration_s
        if node.collective is None
        else price(node.collective.communicator, node.collective.op, node.collective.input_bytes)
        for node in graph.nodes
    }
    head, tail = _heads(graph, own), _heads(graph, own, _users(graph))
    for number, group in enumerate(schedule.groups):
        for name, stated, times in (("ready_s", group.ready_s, head), ("tail_s", group.tail_s, tail)):
            derived = max(times.get(member, 0.0) for member in group.tensors)
            if abs(stated - derived) > slack_s:
                yield f"group {number}: {name} is {stated!r}, derived {derived!r}"
    path = max((head[name] + seconds + tail[name] for name, seconds in own.items()), default=0.0)
    if abs(plan.longest_path_s - path) > slack_s:
        yield f"graph.longest_path_s is {plan.longest_path_s!r}, derived {path!r}"
    for number, bound in enumerate(plan.sets):
        for fault in _check_set(graph, price, bound, head, tail, slack_s):
            yield f"graph.sets[{number}].{fault}"
    if plan.late is not None:
        for fault in _check_late(graph, price, plan.late, plan.budget_bytes, slack_s):
            yield f"graph.late.{fault}"
    carried = [_carried_s(graph, bound) for bound in plan.sets if bound.wire is not None]
    most = (graph.compute_slowdown - 1) * max(carried, default=0.0)
    if plan.stretch_s > most + slack_s:
        yield f"graph.stretch_s is {plan.stretch_s!r}: expected at most {most!r}"
    proven = [plan.longest_path_s, *(bound.bound_s for bound in plan.sets)]
    if plan.late is not None:
        proven.append(plan.late.bound_s)
    proven = [max(proven) + plan.stretch_s]
    if plan.enumerated is not None:
        yield from _check_enumerated(graph, schedule, plan.enumerated, tail, slack_s)
        proven.append(plan.enumerated.bound_s)
    lower = max(proven)
    predicted = schedule.predicted
    if abs(predicted.lower_bound_s - lower) > slack_s:
        yield f"predicted.lower_bound_s is {predicted.lower_bound_s!r}, the bounds prove {lower!r}"
    gap = predicted.iteration_s / lower - 1 if lower else 0.0
    if abs(predicted.gap - gap) > 1e-6:
        yield f"predicted.gap is {predicted.gap!r}, derived {gap!r}"


def _check_enumerated(
    graph: CollectiveGraph, schedule: Schedule, stated: EnumeratedPlans, tail: Times, slack_s: float
) -> Iterator[str]:
    end_s, before_s = schedule.predicted.iteration_s, stated.bound_s - slack_s
    if end_s > stated.bound_s + slack_s:
        yield (
            f"predicted.iteration_s is {end_s!r}: expected at most graph.enumerated.bound_s, "
            f"{stated.bound_s!r}, as all plans were compared"
        )
        return
    try:
        if end_s < before_s or ends_before(graph, before_s, schedule.graph_plan.budget_bytes, tail):
            yield f"graph.enumerated.bound_s is {stated.bound_s!r}: a plan within the budget ends earlier"
    except TooManyPlans:
        yield "graph.enumerated: expected null, as the graph has too many plans to compare"


def _heads(graph: CollectiveGraph, own: dict[str, float], nexts: dict[str, list[str]] | None = None) -> Times:
    """Return when each node can start at the earliest; with `nexts`, how long what follows it takes at least.

    A collective starts behind all ops that it needs, which run one at a time: behind any threshold and all of
    them that start no earlier.
    """
    nodes = graph.nodes if nexts is None else graph.nodes[::-1]
    names = [node.name for node in nodes if node.duration_s > 0]
    place = {name: number for number, name in enumerate(names)}
    seconds = np.array([own[name] for name in names])
    starts = np.zeros(len(names))
    needs: dict[str, int] = {}  # one bit for each op that a node needs, itself included
    head: Times = {}
    for node in nodes:
        before = node.deps if nexts is None else nexts[node.name]
        needed = 0
        for dep in before:
            needed |= needs[dep]
        start = max((head[dep] + own[dep] for dep in before), default=0.0)
        if node.collective is not None and needed:
            packed = np.frombuffer(needed.to_bytes((len(names) + 7) // 8, "little"), dtype=np.uint8)
            chosen = np.flatnonzero(np.unpackbits(packed, bitorder="little"))
            chosen = chosen[np.argsort(starts[chosen])[::-1]]
            start = max(start, float(np.max(starts[chosen] + np.cumsum(seconds[chosen]))))
        if node.name in place:
            needed |= 1 << place[node.name]
            starts[place[node.name]] = start
        needs[node.name] = needed
        head[node.name] = start
    return head


def _users(graph: CollectiveGraph) -> dict[str, list[str]]:
    users: dict[str, list[str]] = {node.name: [] for node in graph.nodes}
    for node in graph.nodes:
        for dep in node.deps:
            users[dep].append(node.name)
    return users


def _check_lines(graph: CollectiveGraph, price: Prices, wire: str, lines: Sequence[KeyLine]) -> Iterator[str]:
    """Show that no bucket of a wire costs less than its line says."""
    wires = {each.name: each.wire for each in graph.communicators}
    sizes: dict[tuple[str, str, DType | None], list[int]] = {}
    for node in graph.nodes:
        call = node.collective
        if call is not None and wires[call.communicator] == wire:
            sizes.setdefault((call.op, call.communicator, call.dtype), []).append(call.input_bytes)
    stated: dict[tuple[str, str, str | None], KeyLine] = {
        (line.op, line.communicator, line.dtype): line for line in lines
    }
    if stated.keys() != sizes.keys() or len(stated) != len(lines):
        yield "lines: expected one for each op, communicator and dtype of the wire's collectives"
        return
    samples: dict[tuple[str, str], list[int]] = {
        (each.name, cost.op): [size for size, _ in getattr(cost.cost, "samples", ())]
        for each in graph.communicators
        for cost in each.costs
    }
    for (op, communicator, dtype), found in sizes.items():
        line = stated[op, communicator, dtype]
        least, most = min(found), sum(found)
        # A line lies below a piecewise linear curve where it does so at the curve's knots and ends.
        tried = {least, most, *(int(size) for size in samples[communicator, op] if least <= size <= most)}
        for size in sorted(tried):
            lowest = line.latency_s + size * line.seconds_per_byte
            if lowest > price(communicator, op, size) * (1 + 1e-9):
                yield f"lines: that of {op} on {communicator} is above the cost of {size} bytes"
                break


def _check_set(
    graph: CollectiveGraph, price: Prices, bound: SetOfNodes, head: Times, tail: Times, slack_s: float
) -> Iterator[str]:
    inside = [
        node
        for node in graph.nodes
        if head[node.name] >= bound.min_head_s - slack_s and tail[node.name] >= bound.min_tail_s - slack_s
    ]
    if bound.wire is None:
        count = sum(node.collective is None and node.duration_s > 0 for node in inside)
        total, latency = sum(node.duration_s for node in inside), 0.0
        if bound.lines:
            yield "lines: expected none, as wire is null"
    else:
        yield from _check_lines(graph, price, bound.wire, bound.lines)
        wires = {each.name: each.wire for each in graph.communicators}
        per_byte = {(line.op, line.communicator, line.dtype): line.seconds_per_byte for line in bound.lines}
        calls = [node.collective for node in inside if node.collective is not None]
        calls = [call for call in calls if wires[call.communicator] == bound.wire]
        count = len(calls)
        total = sum(
            call.input_bytes * per_byte.get((call.op, call.communicator, call.dtype), 0.0) for call in calls
        )
        latency = min((line.latency_s for line in bound.lines), default=0.0) if calls else 0.0
    if bound.num_nodes > count:
        yield f"num_nodes is {bound.num_nodes}: expected at most {count}"
    for field, stated, most in (
        ("total_s", bound.total_s, total),
        ("latency_s", bound.latency_s, latency),
    ):
        if stated > most + slack_s:
            yield f"{field} is {stated!r}: expected at most {most!r}"
    parts = bound.min_head_s + bound.total_s + bound.latency_s + bound.min_tail_s
    if abs(bound.bound_s - parts) > slack_s:
        yield f"bound_s is {bound.bound_s!r}, its parts add up to {parts!r}"
    if not bound.num_nodes and bound.bound_s > slack_s:
        yield f"bound_s is {bound.bound_s!r}: expected 0, as num_nodes is 0"


def _carried_s(graph: CollectiveGraph, bound: SetOfNodes) -> float:
    """Return how long a set's wire carries collectives in every plan, by the set's lines."""
    per_byte = {(line.op, line.communicator, line.dtype): line.seconds_per_byte for line in bound.lines}
    seconds = min((line.latency_s for line in bound.lines), default=0.0)
    for node in graph.nodes:
        call = node.collective
        if call is not None:
            seconds += call.input_bytes * per_byte.get((call.op, call.communicator, call.dtype), 0.0)
    return seconds


def _check_late(
    graph: CollectiveGraph, price: Prices, bound: LateCollective, budget_bytes: int | None, slack_s: float
) -> Iterator[str]:
    by_name = {node.name: node for node in graph.nodes}
    late = by_name.get(bound.collective)
    if late is None or late.collective is None:
        yield f'collective is "{bound.collective}", which is no collective of the graph'
        return
    wires = {each.name: each.wire for each in graph.communicators}
    wire = wires[late.collective.communicator]
    yield from _check_lines(graph, price, wire, bound.lines)
    per_byte = {(line.op, line.communicator, line.dtype): line.seconds_per_byte for line in bound.lines}
    needed = {late.name}
    first: dict[str, str] = {}
    place = {node.name: number for number, node in enumerate(graph.nodes)}
    seconds: dict[str, float] = {}
    for node in reversed(graph.nodes):
        if node.name in needed:
            needed.update(node.deps)
        call = node.collective
        below = first.get(node.name)
        if call is not None and wires[call.communicator] == wire:
            seconds[node.name] = call.input_bytes * per_byte.get(
                (call.op, call.communicator, call.dtype), 0.0
            )
            below = node.name
        if below is not None:
            for dep in node.deps:
                if dep not in first or place[below] < place[first[dep]]:
                    first[dep] = below
    held: dict[str, int] = {}
    if bound.held_s_per_byte:
        if bound.full_at is None or bound.full_at not in needed:
            yield f'full_at is "{bound.full_at}": expected "{late.name}" or a node that it needs'
            return
        memory = MemoryBehind(graph, bound.full_at)
        if budget_bytes is None:
            yield f"held_s_per_byte is {bound.held_s_per_byte!r}: expected 0, as there is no budget"
        elif bound.room_bytes < budget_bytes - memory.in_use_bytes:
            least = budget_bytes - memory.in_use_bytes
            yield f"room_bytes is {bound.room_bytes}: expected at least {least}"
        held = memory.held_bytes(bound.held_s_per_byte, place.keys() - needed)
    elif bound.room_bytes or bound.full_at is not None:
        yield f"room_bytes is {bound.room_bytes}: expected 0 and no full_at, as held_s_per_byte is 0"
    hidden, shared = bound.held_s_per_byte * bound.room_bytes, dict.fromkeys(seconds, 0.0)
    for node in graph.nodes:
        if node.name in needed or node.collective is not None:
            continue
        left_s = max(0.0, node.duration_s - bound.held_s_per_byte * held.get(node.name, 0))
        if node.name in first:
            shared[first[node.name]] += left_s
        else:
            hidden += left_s
    hidden += sum(max(0.0, shared[name] - seconds[name]) for name in seconds)
    compute = sum(node.duration_s for node in graph.nodes)
    latency = min((line.latency_s for line in bound.lines), default=0.0)
    for field, stated, derived in (
        ("compute_s", bound.compute_s, compute),
        ("own_s", bound.own_s, seconds[late.name]),
    ):
        if abs(stated - derived) > slack_s:
            yield f"{field} is {stated!r}, derived {derived!r}"
    if bound.hidden_s < hidden - slack_s:
        yield f"hidden_s is {bound.hidden_s!r}: expected at least {hidden!r}"
    if bound.latency_s > latency + slack_s:
        yield f"latency_s is {bound.latency_s!r}: expected at most {latency!r}"
    parts = bound.compute_s + bound.latency_s + bound.own_s - bound.hidden_s
    if abs(bound.bound_s - parts) > slack_s:
        yield f"bound_s is {bound.bound_s!r}, its parts add up to {parts!r}"
