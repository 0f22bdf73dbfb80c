"""Small graphs are solved exactly: against every plan, and against the checker, which shares no code."""

import math
import re

import pytest
from hypothesis import given, settings

import pace
from pace import Options
from pace.checker.graph.enumeration import ends_before
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.graph.nodes import CollectiveCall, CollectiveOp, GraphNode
from pace.documents.schedule import Schedule
from pace.errors import InvalidOptions
from pace.kinds import check
from pace.planning.graph.arrays import program_of
from pace.planning.graph.optimize import optimize_graph
from pace.solver.graph.list_schedule import UNLIMITED, ListRules, ListScheduler
from pace.solver.graph.memory import needed_bytes
from pace.solver.graph.search import MOST_NODES
from tests.sharded_graphs import collective, forward, graph_of, graphs, tiny_graph, wait
from tests.solver.graph.exhaustive import fastest, least_bytes


def planned(graph: CollectiveGraph, memory_bytes: int | None = None) -> Schedule:
    """Return a schedule that the checker accepts."""
    schedule = optimize_graph(graph, Options(memory_bytes=memory_bytes))
    assert check(graph, schedule) == []
    return schedule


def least_memory(graph: CollectiveGraph) -> int:
    """Return the bytes that the refusal of a budget of one byte says every plan needs."""
    with pytest.raises(InvalidOptions) as refused:
        planned(graph, 1)
    found = re.search(r"every plan needs ([\d,]+) bytes", str(refused.value))
    assert found, refused.value
    return int(found[1].replace(",", ""))


def some_plan(graph: CollectiveGraph, seconds: float, memory_bytes: int | None = None) -> bool:
    """Return whether the checker finds a plan that ends earlier; its bound of what follows nodes is 0."""
    return ends_before(graph, seconds, memory_bytes, {node.name: 0.0 for node in graph.nodes})


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_plans_of_random_tiny_graphs_are_exact(first: int) -> None:
    """No plan is faster by 0.5 %, and the schedule says so; nor within three quarters of the memory."""
    for seed in range(first, first + 50):
        graph = tiny_graph(seed)
        schedule = planned(graph)
        assert schedule.solver.method.startswith("exact")
        assert schedule.predicted.lower_bound_s == schedule.predicted.iteration_s
        assert not some_plan(graph, schedule.predicted.iteration_s * 0.995), seed
        budget = (schedule.predicted.peak_bytes or 0) * 3 // 4
        if budget and some_plan(graph, math.inf, budget):
            within = planned(graph, budget)
            assert within.predicted.iteration_s >= schedule.predicted.iteration_s * (1 - 1e-9)
            assert not some_plan(graph, within.predicted.iteration_s * 0.995, budget), seed


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_the_least_memory_of_random_tiny_graphs_is_exact(first: int) -> None:
    """A plan exists in what a refusal says every plan needs, and none in a byte less."""
    for seed in range(first, first + 50):
        graph = tiny_graph(seed)
        if (planned(graph).predicted.peak_bytes or 0) < 2:
            continue
        least = least_memory(graph)
        assert (planned(graph, least).predicted.peak_bytes or 0) == least
        assert not some_plan(graph, math.inf, least - 1), seed
        assert int(needed_bytes(program_of(graph)).max()) <= least


@settings(max_examples=40)
@given(graphs(most_nodes=6, samples=True))
def test_no_plan_is_better_than_the_exact_one(graph: CollectiveGraph) -> None:
    """Every order and every bucket of a few nodes, one by one."""
    program = program_of(graph)
    assert planned(graph).predicted.iteration_s == pytest.approx(fastest(program))
    least = least_bytes(program)
    if least > 1:
        assert least_memory(graph) == least
        assert planned(graph, least).predicted.iteration_s == pytest.approx(fastest(program, least))


def early_reduce() -> CollectiveGraph:
    """Return an op of 3 s, the all-reduce of its output (2.5 s), and one that is ready at once (1 s)."""

    def reduce(name: str, size: int, deps: tuple[str, ...] = ()) -> GraphNode:
        call = CollectiveCall(
            op="all-reduce", communicator="dp", dtype="float32", input_bytes=size, output_bytes=2 * size
        )
        return GraphNode(name=name, deps=deps, collective=call)

    nodes = [
        GraphNode(name="op", duration_s=3.0, allocates_bytes=10),
        reduce("late", 200, ("op",)),
        wait("late"),
        reduce("ready", 50),
        wait("ready"),
    ]
    return graph_of(nodes, latency_s=0.5, seconds_per_byte=0.01, copy_bytes_per_s=1000.0)


@pytest.mark.parametrize("num_views", [0, 2 * MOST_NODES])
def test_a_ready_collective_is_sent_while_the_wire_is_idle(num_views: int) -> None:
    """It is over before the op that the other one waits for, also where plans are too many to compare."""
    graph = early_reduce()
    views = tuple(GraphNode(name=f"view {number}") for number in range(num_views))
    graph = graph.model_copy(update={"nodes": (*graph.nodes, *views)})
    schedule = planned(graph)
    assert schedule.predicted.iteration_s == 5.5
    assert schedule.groups[0].tensors == ("ready",)


def test_a_wait_that_frees_memory_comes_before_an_op_that_needs_it() -> None:
    """In program order 350 bytes are in use at the last op; in 250 bytes it waits for the scatter first."""
    nodes = [
        GraphNode(name="first", duration_s=1.0, allocates_bytes=100),
        collective("scatter", "reduce-scatter", ("first",)),
        GraphNode(name="second", duration_s=1.0, allocates_bytes=100),
        wait("scatter"),
        GraphNode(name="last", duration_s=1.0, deps=("second",), allocates_bytes=50),
    ]
    graph = graph_of(nodes)
    least = least_memory(graph)
    assert least == 100 + 64
    assert planned(graph, least).predicted.peak_bytes == least
    with pytest.raises(InvalidOptions, match=f'every plan needs {least} bytes, at node "scatter"; allow at'):
        planned(graph, least - 1)


def test_a_wrong_enumeration_is_found() -> None:
    """The checker compares all plans again."""
    graph = early_reduce()
    document = pace.optimize(graph).model_dump()
    document["graph"]["enumerated"]["bound_s"] = 5.6
    found = check(graph, Schedule.model_validate(document))
    assert "graph.enumerated.bound_s is 5.6: a plan within the budget ends earlier" in found


def test_collectives_that_need_one_another_are_in_no_bucket() -> None:
    """The checker does not try the 4 million ways to divide 12 all-reduces of a chain into buckets."""
    nodes: list[GraphNode] = []
    before: tuple[str, ...] = ()
    for number in range(12):
        nodes += [collective(f"reduce {number}", "all-reduce", before), wait(f"reduce {number}")]
        before = (nodes[-1].name,)
    assert planned(graph_of(nodes)).graph_plan.enumerated is not None


def test_a_claim_to_have_compared_all_plans_of_a_large_graph_is_refused() -> None:
    """The checker gives up soon, whatever time is stated."""
    graph = graph_of(forward(200))
    schedule = planned(graph)
    end_s = schedule.predicted.iteration_s
    for bound_s in (0.0, end_s / 2, end_s, 2 * end_s, 1e17):
        document = schedule.model_dump()
        document["graph"]["enumerated"] = {"num_states": 1, "bound_s": bound_s}
        found = check(graph, Schedule.model_validate(document))
        assert any("graph.enumerated" in fault for fault in found), bound_s


def test_a_bucket_of_a_gather_and_another_collective_waits_for_its_inputs() -> None:
    """The second all-reduce reads what another collective reads too, so it cannot be issued at any time."""

    def call(name: str, op: CollectiveOp, size: int, deps: tuple[str, ...], group: str) -> GraphNode:
        sent = CollectiveCall(
            op=op, communicator=group, dtype="float32", input_bytes=size, output_bytes=2 * size
        )
        return GraphNode(name=name, deps=deps, collective=sent)

    nodes = [
        GraphNode(name="op", duration_s=0.3),
        call("first", "all-reduce", 100, (), "dp"),
        GraphNode(name="shared", duration_s=1.0, deps=("op",)),
        call("second", "all-reduce", 100, ("shared",), "dp"),
        wait("first"),
        wait("second"),
        call("other", "all-gather", 10, ("op", "shared"), "tp"),
        wait("other"),
    ]
    program = program_of(graph_of(nodes, latency_s=4.0))
    bucket = (program.collectives()[:2].tolist(),)
    order = ListScheduler(program, UNLIMITED).plan(bucket, ListRules()).plan.order
    assert sorted(order.tolist()) == list(range(len(nodes)))


@pytest.mark.parametrize("seed", [205, 208, 209, 234])
def test_more_memory_makes_no_plan_slower(seed: int) -> None:
    """Too many plans to compare them all: within less memory, a search may find a faster plan."""
    graph = tiny_graph(seed, most_nodes=20, most_collectives=10)
    free = optimize_graph(graph, Options())
    peak_bytes = free.predicted.peak_bytes
    assert peak_bytes is not None
    fastest_s = math.inf
    for percent in (50, 60, 70, 80, 90, 100, 110, 130):
        try:
            schedule = optimize_graph(graph, Options(memory_bytes=peak_bytes * percent // 100))
        except InvalidOptions:  # it needs more
            continue
        assert schedule.predicted.iteration_s <= fastest_s * (1 + 1e-9)
        fastest_s = min(fastest_s, schedule.predicted.iteration_s)
    assert free.predicted.iteration_s <= fastest_s * (1 + 1e-9)
