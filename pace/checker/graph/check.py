"""Whether a schedule is a right answer for a graph; shares no code with the planner."""

from collections.abc import Iterator

from pace.checker.graph.bounds import check_bounds
from pace.checker.graph.replay import Replay, replay
from pace.checker.plan import check_execution
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.schedule import Schedule

TOLERANCE = 1e-9


def check_graph(graph: CollectiveGraph, schedule: Schedule) -> list[str]:
    """Return every way in which a schedule is not a right answer for a graph; empty if it is one."""
    violations = [*_check_identity(graph, schedule)]
    if not violations:
        violations += _check_order(graph, schedule)
    if violations:
        return violations
    played = replay(graph, schedule)
    return [
        *check_execution(schedule),
        *_check_transfers(schedule, played),
        *_check_predictions(graph, schedule, played),
        *check_bounds(graph, schedule, slack_s=TOLERANCE * played.end_s),
    ]


def _check_identity(graph: CollectiveGraph, schedule: Schedule) -> Iterator[str]:
    if schedule.exchange != "graph":
        yield f'the schedule has exchange "{schedule.exchange}", a graph has "graph"'
        return
    if schedule.profile_sha256 != graph.sha256:
        yield "profile_sha256 is that of another graph"
    if schedule.fingerprint != graph.fingerprint:
        yield "fingerprint is that of other nodes"
    if schedule.links != graph.wires:
        yield f"links are {', '.join(schedule.links)}, the graph has {', '.join(graph.wires)}"
    if len(schedule.graph_plan.order) != len(graph.nodes):
        yield f"graph.order has {len(schedule.graph_plan.order)} nodes: expected all {len(graph.nodes)}"
    sent = sorted(name for group in schedule.groups for name in group.tensors)
    if sent != sorted(node.name for node in graph.nodes if node.collective is not None):
        yield "groups are not made of the graph's collectives, each once"


def _check_order(graph: CollectiveGraph, schedule: Schedule) -> Iterator[str]:
    nodes = [graph.nodes[number] for number in schedule.graph_plan.order]
    places = {node.name: place for place, node in enumerate(nodes)}
    for node in nodes:
        for dep in node.deps:
            if places[dep] > places[node.name]:
                yield f'order: "{node.name}" comes before "{dep}", which it reads'
    waits = {node.waits_for: node.name for node in nodes if node.waits_for is not None}
    by_name = {node.name: node for node in nodes}
    wires = {each.name: graph.wires.index(each.wire) for each in graph.communicators}
    issued = -1
    for number, transfer in enumerate(schedule.transfers):
        group = schedule.groups[transfer.group]
        calls = [by_name[name].collective for name in group.tensors]
        kinds = {(call.op, call.communicator, call.dtype) for call in calls if call is not None}
        if len(kinds) > 1:
            yield f"group {transfer.group}: its collectives differ in op, communicator or dtype"
            continue
        ((op, communicator, dtype),) = kinds
        if group.dtype != (dtype or "uint8"):
            yield f"group {transfer.group}: dtype is {group.dtype}, its collectives have {dtype or 'uint8'}"
        if (transfer.op, transfer.link) != (op, wires[communicator]):
            yield f"transfers[{number}] is {transfer.op} on link {transfer.link}, its collectives are not"
        size = sum(call.input_bytes for call in calls if call is not None)
        if group.size_bytes != size:
            yield f"group {transfer.group}: size_bytes is {group.size_bytes}, its collectives have {size}"
        for what, names in (("members", group.tensors), ("waits", [waits[name] for name in group.tensors])):
            at = sorted(places[name] for name in names)
            if at != list(range(at[0], at[0] + len(at))):
                yield f"group {transfer.group}: its {what} do not follow one another in the order"
        first = min(places[name] for name in group.tensors)
        if first < issued:
            yield f"transfers[{number}] is listed after one that is issued later"
        issued = first


def _check_transfers(schedule: Schedule, played: Replay) -> Iterator[str]:
    slack = TOLERANCE * played.end_s
    for number, transfer in enumerate(schedule.transfers):
        start, end = played.transfers[transfer.group]
        for field, stated, derived in (
            ("start_s", transfer.start_s, start),
            ("end_s", transfer.end_s, end),
            ("transfer_s", schedule.groups[transfer.group].transfer_s or 0.0, end - start),
        ):
            if abs(stated - derived) > slack:
                yield f"transfers[{number}]: {field} is {stated!r}, derived {derived!r}"


def _check_predictions(graph: CollectiveGraph, schedule: Schedule, played: Replay) -> Iterator[str]:
    predicted = schedule.predicted
    compute = sum(node.duration_s for node in graph.nodes)
    for field, stated, derived in (
        ("iteration_s", predicted.iteration_s, played.end_s),
        ("ideal_iteration_s", predicted.ideal_iteration_s, played.end_s),
        ("compute_s", predicted.compute_s, compute),
    ):
        if abs(stated - derived) > TOLERANCE * played.end_s:
            yield f"predicted.{field} is {stated!r}, derived {derived!r}"
    if predicted.peak_bytes != played.peak_bytes:
        yield f"predicted.peak_bytes is {predicted.peak_bytes}, derived {played.peak_bytes}"
    budget = schedule.graph_plan.budget_bytes
    if budget is not None and played.peak_bytes > budget:
        used = f'{played.peak_bytes} bytes are in use at node "{played.peak_node}"'
        yield f"{used}: expected at most graph.budget_bytes, {budget}"
