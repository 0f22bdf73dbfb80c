"""Bounds of graphs against every order and every bucket of tiny programs."""

import numpy as np
from hypothesis import given, settings

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.graph.nodes import GraphNode
from pace.planning.graph.arrays import program_of
from pace.planning.graph.optimize import lower_bound_s
from pace.solver.graph.bounds import longest_path_s, machine_bounds
from pace.solver.graph.last_collective import last_collective
from pace.solver.graph.list_schedule import UNLIMITED, ListRules, ListScheduler
from pace.solver.graph.program import COLLECTIVE, WAIT
from pace.solver.graph.search import search
from pace.solver.graph.timeline import run
from tests.sharded_graphs import collective, graph_of, graphs, wait
from tests.solver.graph.exhaustive import fastest


@settings(max_examples=60)
@given(graphs(most_nodes=5))
def test_no_order_and_no_bucket_beats_a_bound(graph: CollectiveGraph) -> None:
    """Every plan of a tiny program, and the planner's, ends no earlier than each bound says."""
    program = program_of(graph)
    if len(program) > 7:
        return
    best = fastest(program)
    late = last_collective(program)
    bounds = [longest_path_s(program), *(bound.bound_s for bound in machine_bounds(program))]
    bounds += [lower_bound_s(program), *([] if late is None else [late.bound_s])]
    assert max(bounds) <= best * (1 + 1e-9) + 1e-12
    assert search(program, UNLIMITED, 40).end_s >= max(bounds) * (1 - 1e-9) - 1e-12


@settings(max_examples=60)
@given(graphs())
def test_the_scheduler_prices_its_plans_as_they_run(graph: CollectiveGraph) -> None:
    """The compiled loop and the plain walk through its order agree, and every node is there once."""
    program = program_of(graph)
    scheduler = ListScheduler(program, UNLIMITED)
    for rules in (
        ListRules(),
        ListRules(window=4),
        ListRules(window=100, by_tail=True),
    ):
        found = scheduler.plan((), rules)
        assert sorted(found.plan.order.tolist()) == list(range(len(program)))
        assert abs(run(program, found.plan).end_s - found.end_s) <= 1e-9
        place = {node: at for at, node in enumerate(found.plan.order.tolist())}
        assert all(place[dep] < place[node] for node in place for dep in program.deps[node].tolist())
        assert np.all(np.isin(program.kind, (0, COLLECTIVE, WAIT)))


def test_compute_on_both_sides_of_a_collective_adds_up() -> None:
    """Two ops that only the compute stream separates make a collective's head, and two its tail."""
    nodes = [
        GraphNode(name="left", duration_s=1.0),
        GraphNode(name="right", duration_s=2.0),
        collective("reduce", "all-reduce", ("left", "right")),
        wait("reduce"),
        GraphNode(name="one", duration_s=3.0, deps=("wait reduce",)),
        GraphNode(name="other", duration_s=4.0, deps=("wait reduce",)),
    ]
    program = program_of(graph_of(nodes, latency_s=2.0, seconds_per_byte=0.0))
    head, tail = program.heads_and_tails
    assert head.tolist() == [0, 0, 3, 5, 5, 5]
    assert tail.tolist() == [4 + 5, 4 + 5, 7, 4, 0, 0]
    assert longest_path_s(program) == 3 + 2 + 7 == search(program, UNLIMITED, 40).end_s


def test_traffic_beside_compute_is_in_the_bound() -> None:
    """An op of 3 s beside a gather of 2 s that halves its rate ends after 4 s, in every plan."""
    nodes = [collective("gather", "all-gather"), GraphNode(name="op", duration_s=3.0), wait("gather")]
    program = program_of(graph_of(nodes, latency_s=2.0, seconds_per_byte=0.0, compute_slowdown=2.0))
    assert lower_bound_s(program) == 4 == search(program, UNLIMITED, 40).end_s
