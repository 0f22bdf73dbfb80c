"""Orders of a program that the search starts from."""

import numpy as np
from hypothesis import given, settings

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.graph.nodes import GraphNode
from pace.planning.graph.arrays import program_of
from pace.solver.graph.base_orders import base_orders, deferred_nodes, drained_early, leaner
from pace.solver.graph.last_collective import last_collective
from pace.solver.graph.list_schedule import UNLIMITED, ListScheduler
from pace.solver.graph.memory import memory_in_use
from pace.solver.graph.program import ProgramPlan
from pace.solver.graph.search import search
from pace.solver.graph.timeline import run
from tests.sharded_graphs import collective, graph_of, graphs, wait


@settings(max_examples=100)
@given(graphs())
def test_each_order_is_a_plan(graph: CollectiveGraph) -> None:
    """Every node is there once, behind what it reads, and the program in this order runs like the plan."""
    program = program_of(graph)
    for order in base_orders(ListScheduler(program, UNLIMITED)):
        assert sorted(order.tolist()) == list(range(len(program)))
        place = {node: at for at, node in enumerate(order.tolist())}
        assert all(place[dep] < place[node] for node in place for dep in program.deps[node].tolist())
        turned = program.in_order(order)
        own = ProgramPlan(order=np.arange(len(order)), buckets=())
        assert run(turned, own).end_s == run(program, own.of(order)).end_s
        peaks = [memory_in_use(turned, own).peak_bytes, memory_in_use(program, own.of(order)).peak_bytes]
        assert peaks[0] == peaks[1]


def test_a_sink_drains_as_soon_as_it_can() -> None:
    """The reduction of the first op goes out before the second op runs, which it does not need."""
    nodes = [
        GraphNode(name="first", duration_s=1.0),
        GraphNode(name="second", duration_s=1.0, deps=("first",)),
        GraphNode(name="gradient", duration_s=1.0, deps=("first",)),
        collective("reduce", "reduce-scatter", ("gradient",)),
        wait("reduce", returned=True),
    ]
    program = program_of(graph_of(nodes))
    assert drained_early(ListScheduler(program, UNLIMITED)).tolist() == [0, 2, 3, 1, 4]


def test_memory_is_added_late() -> None:
    """An op that adds memory runs right before its user, and one that frees memory right behind its input."""
    nodes = [
        GraphNode(name="early", duration_s=1.0, allocates_bytes=100),
        GraphNode(name="large", duration_s=1.0, allocates_bytes=100),
        GraphNode(name="between", duration_s=1.0, allocates_bytes=1),
        GraphNode(name="small", duration_s=1.0, deps=("large",), allocates_bytes=1),
        GraphNode(name="user", duration_s=1.0, deps=("early", "small", "between"), returned=True),
    ]
    program = program_of(graph_of(nodes))
    order = leaner(program, np.arange(len(program)))
    assert order.tolist() == [1, 3, 0, 2, 4]


def held_back(*, held_bytes: int) -> CollectiveGraph:
    """Return a gradient of 3 s whose input takes so many bytes, and a last reduce-scatter of 4 s.

    The gradient is reduced on another wire.
    """
    nodes = [
        GraphNode(name="first", duration_s=1.0, allocates_bytes=held_bytes),
        GraphNode(name="gradient", duration_s=3.0, deps=("first",), allocates_bytes=16),
        collective("reduce", "all-reduce", ("gradient",), group="tp"),
        wait("reduce", returned=True),
        GraphNode(name="second", duration_s=1.0, deps=("first",), allocates_bytes=256),
        collective("last", "reduce-scatter", ("second",)),
        wait("last", returned=True),
    ]
    call = nodes[2].collective
    assert call is not None
    nodes[2] = nodes[2].model_copy(update={"collective": call.model_copy(update={"input_bytes": 1})})
    return graph_of(nodes, latency_s=0.0, seconds_per_byte=1 / 64, wires=("wire", "second"))


def test_ops_hide_the_last_collective() -> None:
    """The gradient is deferred, and the plan then ends when the bound says."""
    program = program_of(held_back(held_bytes=64))
    deferred = deferred_nodes(ListScheduler(program, UNLIMITED))
    assert np.flatnonzero(deferred).tolist() == [1, 2, 3, 6]
    late = last_collective(program)
    assert late is not None
    assert late.bound_s == search(program, UNLIMITED, 48).end_s == 1 + 1 + 4


def test_what_does_not_fit_is_not_deferred() -> None:
    """The input of the gradient must not stay in memory if the budget has no room for it."""
    program = program_of(held_back(held_bytes=1024))
    budget_bytes = memory_in_use(program, ProgramPlan(order=np.arange(len(program)), buckets=())).peak_bytes
    assert not deferred_nodes(ListScheduler(program, budget_bytes)).any()
