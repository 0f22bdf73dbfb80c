"""Orders in which ops run where a plan waits."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.graph.nodes import GraphNode
from pace.planning.graph.arrays import program_of
from pace.solver.graph.filled_waits import with_filled_waits
from pace.solver.graph.list_schedule import ListScheduler
from pace.solver.graph.memory import memory_in_use
from pace.solver.graph.program import ProgramPlan
from pace.solver.graph.timeline import run
from tests.sharded_graphs import collective, graph_of, graphs, wait


def waiting(*, held_bytes: int = 16, cast_bytes: int = 0) -> CollectiveGraph:
    """Return a gradient of 1 s, one whose reduce-scatter takes 4 s, and a peak without room for its input.

    The first gradient reads so many bytes, is cast to so many, and is reduced on another wire in no time.
    """
    nodes = [
        GraphNode(name="input", allocates_bytes=held_bytes),
        GraphNode(name="other", deps=("input",)),
        GraphNode(name="first", duration_s=1.0, deps=("input",), allocates_bytes=8),
        GraphNode(name="cast", deps=("first",), allocates_bytes=cast_bytes),
        collective("reduce", "all-reduce", ("cast",), group="tp"),
        wait("reduce"),
        GraphNode(name="second", duration_s=1.0, allocates_bytes=256),
        collective("scatter", "reduce-scatter", ("second",)),
        wait("scatter"),
        GraphNode(name="peak", duration_s=1.0, allocates_bytes=500),
        GraphNode(name="behind", duration_s=1.0, deps=("peak",)),
        GraphNode(name="end", duration_s=1.0, deps=("behind",)),
    ]
    call = nodes[4].collective
    assert call is not None
    nodes[4] = nodes[4].model_copy(update={"collective": call.model_copy(update={"input_bytes": 0})})
    return graph_of(nodes, latency_s=0.0, seconds_per_byte=1 / 64, wires=("wire", "second"))


def filled(graph: CollectiveGraph, budget_bytes: int) -> tuple[list[str], float] | None:
    """Return the names in the order with filled waits, and its end; None without such an order."""
    program = program_of(graph)
    own = np.arange(len(program))
    plan = ProgramPlan(order=own, buckets=())
    order = with_filled_waits(ListScheduler(program, budget_bytes), plan, own, budget_bytes)
    if order is None:
        return None
    end_s = run(program, ProgramPlan(order=order, buckets=())).end_s
    return [graph.nodes[node].name for node in order.tolist()], end_s


def test_an_op_fills_a_wait() -> None:
    """The plan takes 9 s and waits for 4 s of it. Now the first gradient runs meanwhile, which saves 1 s."""
    found = filled(waiting(), 700)
    assert found is not None
    names, end_s = found
    assert names.index("scatter") < names.index("first") < names.index("wait scatter")
    assert end_s == 8.0


def test_an_output_is_cast_when_memory_is_ample() -> None:
    """The peak has room for the gradient, but not for its cast."""
    found = filled(waiting(cast_bytes=200), 700)
    assert found is not None
    names, end_s = found
    assert names.index("first") < names.index("wait scatter")
    assert names.index("peak") < names.index("cast") < names.index("reduce")
    assert end_s == 8.0


def test_what_an_op_reads_must_fit() -> None:
    """Without room for its input while the second gradient is made, the first one stays where it is."""
    assert filled(waiting(held_bytes=600), 700) is None


@settings(max_examples=100)
@given(graphs(), st.integers(0, 1000))
def test_the_order_is_a_plan(graph: CollectiveGraph, more_bytes: int) -> None:
    """Every node is there once, behind what it reads."""
    program = program_of(graph)
    own = np.arange(len(program))
    plan = ProgramPlan(order=own, buckets=())
    budget_bytes = memory_in_use(program, plan).peak_bytes + more_bytes
    order = with_filled_waits(ListScheduler(program, budget_bytes), plan, own, budget_bytes)
    place = {node: at for at, node in enumerate(own.tolist() if order is None else order.tolist())}
    assert sorted(place) == own.tolist()
    assert all(place[dep] < place[node] for node in place for dep in program.deps[node].tolist())
