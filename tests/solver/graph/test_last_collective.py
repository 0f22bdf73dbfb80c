"""The bound of the last collective, within a memory budget."""

import random

import numpy as np
import pytest

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.graph.nodes import GraphNode
from pace.documents.options import Options
from pace.documents.schedule import Schedule
from pace.kinds import check
from pace.planning.graph.arrays import program_of
from pace.planning.graph.optimize import optimize_graph
from pace.solver.graph.last_collective import last_collective
from pace.solver.graph.memory import memory_in_use
from pace.solver.graph.program import ProgramPlan
from pace.solver.graph.timeline import run
from tests.sharded_graphs import collective, graph_of, tiny_graph, wait
from tests.solver.graph.exhaustive import every_plan, peak_bytes


def norms(num_layers: int) -> CollectiveGraph:
    """Return layers of 1 s that each leave 100 bytes to a gradient of 1 s, and a last collective of 8 s.

    The gradients are reduced on another wire.
    """
    nodes: list[GraphNode] = []
    before: tuple[str, ...] = ()
    for layer in range(num_layers):
        nodes += [
            GraphNode(name=f"layer {layer}", duration_s=1.0, deps=before, allocates_bytes=100),
            GraphNode(name=f"norm {layer}", duration_s=1.0, deps=(f"layer {layer}",), allocates_bytes=1),
            collective(f"reduce {layer}", "all-reduce", (f"norm {layer}",), group="tp"),
            wait(f"reduce {layer}"),
        ]
        before = (f"layer {layer}",)
    nodes += [
        GraphNode(name="table", duration_s=1.0, deps=before, allocates_bytes=50),
        collective("last", "reduce-scatter", ("table",)),
        wait("last"),
    ]
    graph = graph_of(nodes, latency_s=8.0, seconds_per_byte=0.0, wires=("wire", "second"))
    fast, slow = graph.communicators[1], graph.communicators[0]
    free = tuple(
        cost.model_copy(update={"cost": cost.cost.model_copy(update={"latency_s": 0.0})})
        for cost in fast.costs
    )
    return graph.model_copy(update={"communicators": (slow, fast.model_copy(update={"costs": free}))})


def test_memory_limits_what_hides_the_last_collective() -> None:
    """When the last one is issued, 50 bytes are its input, 64 its output, and each hidden gradient keeps 100.

    Beside these, a budget of 314 bytes has room for two of four: 5 s and two of 1 s, then 8 s.
    """
    program = program_of(norms(4))
    without, within = last_collective(program), last_collective(program, 314)
    assert without is not None
    assert within is not None
    assert without.bound_s == 9 + 8 - 4
    assert within.room_bytes == 200
    assert within.bound_s == pytest.approx(9 + 8 - 2, rel=3e-3)


def table() -> CollectiveGraph:
    """Return four gradients of 1 s and 100 bytes that are reduced to 64, and a last collective of 8 s.

    Its input is made from 300 bytes of zeros.
    """
    graph = norms(4)
    nodes: list[GraphNode] = []
    for node in graph.nodes:
        if node.name == "table":
            nodes.append(GraphNode(name="zeros", deps=node.deps, allocates_bytes=300))
            node = node.model_copy(update={"deps": (*node.deps, "zeros")})
        elif node.name.startswith("norm"):
            node = node.model_copy(update={"allocates_bytes": 100})
        nodes.append(node.model_copy(update={"returned": node.waits_for is not None}))
    return graph.model_copy(update={"nodes": tuple(nodes)})


def test_memory_is_counted_where_most_is_in_use() -> None:
    """When the table is made, 300 bytes of zeros, 50 of its own and 100 of the last layer are in use.

    Of each gradient but the last, 64 bytes are in use by then, or 100 if it runs later. The last one needs no
    more memory than the layer. A budget with 54 bytes to spare has room for one and a half of the others.
    """
    graph = table()
    within = last_collective(program_of(graph), 300 + 50 + 100 + 3 * 64 + 54)
    assert within is not None
    assert graph.nodes[within.full_at].name == "table"
    assert within.room_bytes == 54
    assert within.bound_s == pytest.approx(9 + 8 - 1 - 54 / 36, rel=3e-3)


def deferrable(seed: int) -> CollectiveGraph:
    """Return random layers, of which one or two leave memory to a gradient, and a collective at the end.

    In half of them, its input is made from a larger one.
    """
    pick = random.Random(seed)
    nodes: list[GraphNode] = []
    before: tuple[str, ...] = ()
    for layer in range(2):
        name = f"layer {layer}"
        nodes.append(
            GraphNode(name=name, duration_s=1.0, deps=before, allocates_bytes=pick.choice((20, 100)))
        )
        before = (name,)
        if layer == 0 or pick.random() < 0.4:
            for each in ("weights", "cast")[: pick.randint(1, 2)]:
                reads = pick.sample(("layer 0", name), 1) if each == "weights" else [f"weights {layer}"]
                seconds, size = pick.choice((0.5, 1.0, 2.0)), pick.choice((10, 50, 200))
                nodes.append(
                    GraphNode(
                        name=f"{each} {layer}", duration_s=seconds, deps=tuple(reads), allocates_bytes=size
                    )
                )
            group = pick.choice(("dp", "tp"))
            nodes += [
                collective(f"reduce {layer}", "all-reduce", (nodes[-1].name,), group=group),
                wait(f"reduce {layer}", returned=pick.random() < 0.5),
            ]
    if pick.random() < 0.5:
        nodes.append(GraphNode(name="zeros", deps=before, allocates_bytes=pick.choice((100, 300))))
        before = (*before, "zeros")
    nodes += [
        GraphNode(name="table", duration_s=1.0, deps=before, allocates_bytes=50),
        collective("last", "reduce-scatter", ("table",)),
        wait("last", returned=pick.random() < 0.5),
    ]
    wires = pick.choice((("wire",), ("wire", "second")))
    return graph_of(nodes, latency_s=pick.choice((0.0, 1.0)), seconds_per_byte=1 / 64, wires=wires)


def test_no_plan_within_a_budget_beats_the_bound() -> None:
    """Of every tiny graph, for the four smallest budgets that any plan fits into."""
    stronger = 0
    tiny = [tiny_graph(seed, most_nodes=6) for seed in range(40)]
    for seed, graph in enumerate([*tiny, *map(deferrable, range(12))]):
        program = program_of(graph)
        plans = [
            (peak_bytes(program, tuple(plan.order.tolist()), plan.buckets), run(program, plan).end_s)
            for plan in every_plan(program)
        ]
        free = last_collective(program)
        for budget_bytes in sorted({peak for peak, _ in plans})[:4]:
            best = min(end_s for peak, end_s in plans if peak <= budget_bytes)
            bound = last_collective(program, budget_bytes)
            assert bound is not None
            assert free is not None
            assert free.bound_s <= bound.bound_s <= best * (1 + 1e-9) + 1e-12, (seed, budget_bytes)
            stronger += bound.bound_s > free.bound_s
    assert stronger > 5


def planned() -> tuple[CollectiveGraph, Schedule]:
    """Return a graph too large to compare all plans, and its plan within its own memory."""
    graph = norms(12)
    own = ProgramPlan(order=np.arange(len(graph.nodes)), buckets=())
    budget_bytes = memory_in_use(program_of(graph), own).peak_bytes + 100
    return graph, optimize_graph(graph, Options(memory_bytes=budget_bytes))


def test_the_checker_confirms_the_bound() -> None:
    """The bound counts memory, and is the best one."""
    graph, schedule = planned()
    late = schedule.graph_plan.late
    assert late is not None
    assert late.held_s_per_byte > 0
    assert schedule.predicted.lower_bound_s == late.bound_s
    assert check(graph, schedule) == []


@pytest.mark.parametrize(
    ("field", "factor", "found"),
    [
        ("room_bytes", 0.5, "graph.late.room_bytes"),
        ("held_s_per_byte", 0.5, "graph.late.hidden_s"),
        ("hidden_s", 0.9, "graph.late.hidden_s"),
    ],
)
def test_a_forged_bound_is_found(field: str, factor: float, found: str) -> None:
    """Less room, a lower price without its consequences, and less hidden time than derived."""
    graph, schedule = planned()
    late = schedule.graph_plan.late
    assert late is not None
    value = getattr(late, field) * factor
    forged = late.model_copy(update={field: int(value) if field == "room_bytes" else value})
    plan = schedule.graph_plan.model_copy(update={"late": forged})
    violations = check(graph, schedule.model_copy(update={"graph": plan}))
    assert any(found in violation for violation in violations), violations


def test_memory_is_counted_at_a_node_that_the_collective_needs() -> None:
    """Ops that run behind the collective may run before any other node."""
    graph, schedule = planned()
    late = schedule.graph_plan.late
    assert late is not None
    assert late.full_at is not None
    for name in ("norm 11", "no node", None):
        plan = schedule.graph_plan.model_copy(update={"late": late.model_copy(update={"full_at": name})})
        violations = check(graph, schedule.model_copy(update={"graph": plan}))
        assert any("graph.late.full_at" in violation for violation in violations), violations


def test_what_is_returned_counts_once() -> None:
    """A room without the bytes of what is made later is too small."""
    graph = table()
    schedule = optimize_graph(graph, Options(memory_bytes=300 + 50 + 100 + 4 * 64 + 54))
    assert check(graph, schedule) == []
    late = schedule.graph_plan.late
    assert late is not None
    plan = schedule.graph_plan.model_copy(
        update={"late": late.model_copy(update={"room_bytes": late.room_bytes - 64})}
    )
    violations = check(graph, schedule.model_copy(update={"graph": plan}))
    assert any("graph.late.room_bytes" in violation for violation in violations), violations


def test_a_price_of_memory_needs_a_budget() -> None:
    """A bound that counts memory proves nothing for plans with any amount of it."""
    graph, schedule = planned()
    plan = schedule.graph_plan.model_copy(update={"budget_bytes": None})
    violations = check(graph, schedule.model_copy(update={"graph": plan}))
    assert any("there is no budget" in violation for violation in violations), violations
