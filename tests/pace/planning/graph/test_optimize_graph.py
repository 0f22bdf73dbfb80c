"""Plans of graphs: small ones worked out by hand, and properties of random ones."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pace
from pace import Options
from pace.documents.graph.collective_graph import CollectiveGraph, parse_graph
from pace.documents.graph.nodes import GraphNode
from pace.documents.schedule import Schedule, parse_schedule
from pace.errors import InvalidOptions
from pace.kinds import check
from pace.planning.graph.arrays import program_of
from pace.planning.graph.optimize import optimize_graph
from pace.solver.graph.list_schedule import UNLIMITED, ListScheduler
from tests.sharded_graphs import FULL, backward, collective, forward, graph_of, graphs, wait


def planned(graph: CollectiveGraph, memory_bytes: int | None = None) -> Schedule:
    """Return a schedule that the checker accepts."""
    schedule = optimize_graph(graph, Options(memory_bytes=memory_bytes))
    assert check(graph, schedule) == []
    return schedule


def as_it_is(graph: CollectiveGraph) -> tuple[float, int]:
    """Return the end and the peak of memory of a graph without a plan."""
    found = ListScheduler(program_of(graph), UNLIMITED).as_it_is()
    return found.end_s, found.peak_bytes


def test_gathers_run_ahead() -> None:
    """The first gather takes 0.625 s, and the others are hidden behind 2 s of compute each."""
    schedule = planned(graph_of(forward(3)))
    assert schedule.predicted.iteration_s == 0.625 + 3 * 2
    assert schedule.predicted.lower_bound_s == schedule.predicted.iteration_s


def test_memory_for_one_unit_keeps_gathers_in_their_places() -> None:
    """With room for one gathered unit and two activations there is nothing to run ahead."""
    graph = graph_of(forward(3))
    _, peak_bytes = as_it_is(graph)
    schedule = planned(graph, peak_bytes)
    assert schedule.predicted.iteration_s == 3 * 0.625 + 3 * 2
    assert planned(graph, peak_bytes + FULL).predicted.iteration_s == 0.625 + 3 * 2


def test_two_collectives_are_queued_behind_the_one_that_compute_waits_for() -> None:
    """The wire takes longer than compute, so it must not wait until compute issues the next gather."""
    layers = forward(20, compute_s=0.125)
    graph = graph_of(layers, latency_s=0.0, seconds_per_byte=1 / 64, copy_bytes_per_s=1e4)
    issued = waited = 0
    for number in planned(graph).graph_plan.order:
        node = graph.nodes[number]
        issued += node.collective is not None
        if node.waits_for is not None:
            waited += 1
            assert issued >= min(waited + 2, 20)


def test_compute_does_not_wait_for_what_it_does_not_need() -> None:
    """A scatter's wait follows the next collective, so compute goes on if the scatter takes longer."""
    graph = graph_of(backward(12), latency_s=0.0)
    order = [graph.nodes[number] for number in planned(graph).graph_plan.order]
    issued = [place for place, node in enumerate(order) if node.collective is not None]
    for place, node in enumerate(order):
        if node.name.startswith("wait scatter"):
            own = next(at for at in issued if order[at].name == node.waits_for)
            assert own == issued[-1] or any(own < at < place for at in issued)


def test_a_budget_below_what_one_unit_needs_is_refused_with_the_node() -> None:
    """The error says how much the least plan needs and where."""
    graph = graph_of(forward(2))
    with pytest.raises(InvalidOptions, match=r'budget of 100 bytes is too small.*288 bytes.*"layer 1"'):
        optimize_graph(graph, Options(memory_bytes=100))


def test_scatters_run_in_the_gaps_and_their_waits_are_late() -> None:
    """Every scatter but the last is hidden behind the compute that follows it."""
    graph = graph_of(backward(4), latency_s=0.0, seconds_per_byte=1 / 512)
    schedule = planned(graph)
    # The first gather takes 1/8 s, eight ops 8 s, and the last scatter 1/2 s.
    assert schedule.predicted.iteration_s == 8.625
    assert as_it_is(graph)[0] == pytest.approx(4 * (0.125 + 2 + 0.5))


def test_latency_makes_buckets() -> None:
    """Collectives of 4 s each do not fit behind compute one by one, and cost 4 s together."""
    graph = graph_of(forward(4, compute_s=1.0), latency_s=4.0, seconds_per_byte=0.0)
    schedule = planned(graph)
    assert schedule.predicted.iteration_s < 4 + 4 + 1
    assert max(len(group.tensors) for group in schedule.groups) > 1


def test_copies_count() -> None:
    """Where copying costs more than latency, nothing is fused."""
    graph = graph_of(forward(4, compute_s=1.0), latency_s=0.25, seconds_per_byte=0.0, copy_bytes_per_s=64.0)
    assert all(len(group.tensors) == 1 for group in planned(graph).groups)


def test_independent_compute_hides_a_collective_on_the_critical_path() -> None:
    """Ops move in front of a wait that they do not need."""
    nodes = [
        GraphNode(name="chain", duration_s=1.0),
        collective("reduce", "all-reduce", ("chain",), group="tp"),
        wait("reduce"),
        GraphNode(name="tail", duration_s=1.0, deps=("wait reduce",)),
        GraphNode(name="side", duration_s=2.0),
    ]
    schedule = planned(graph_of(nodes, latency_s=2.0, seconds_per_byte=0.0))
    assert schedule.predicted.iteration_s == 4.0


def test_a_graph_of_realistic_size_comes_near_its_bound() -> None:
    """Ninety-six layers, gathers and scatters, with little memory to spare."""
    graph = graph_of(backward(96), latency_s=0.01, seconds_per_byte=1 / 400)
    _, peak_bytes = as_it_is(graph)
    schedule = planned(graph, peak_bytes + 4 * FULL)
    assert schedule.predicted.gap < 0.02


@settings(max_examples=60)
@given(graphs(samples=True), st.booleans())
def test_plans_of_random_graphs_are_right(graph: CollectiveGraph, limited: bool) -> None:
    """The checker agrees with every number, no plan is slower than none, and no bound is above a plan."""
    end_s, peak_bytes = as_it_is(graph)
    schedule = planned(graph, max(1, peak_bytes) if limited else None)
    assert schedule.predicted.iteration_s <= end_s * (1 + 1e-9)
    assert schedule.predicted.lower_bound_s <= schedule.predicted.iteration_s * (1 + 1e-9) + 1e-12


@settings(max_examples=20)
@given(graphs())
def test_documents_come_back_from_json(graph: CollectiveGraph) -> None:
    """A graph and its schedule are the same after writing and reading, and so is the plan to the byte."""
    assert parse_graph(graph.to_json()) == graph
    schedule = pace.optimize(graph)
    assert parse_schedule(schedule.to_json()) == schedule
    assert pace.optimize(parse_graph(graph.to_json())).to_json() == schedule.to_json()


def test_options_of_other_exchanges_are_refused() -> None:
    """A graph has a memory budget and nothing else, and a profile has none."""
    graph = graph_of(forward(1))
    with pytest.raises(InvalidOptions, match="max_group_bytes"):
        pace.optimize(graph, Options(max_group_bytes=4))
    with pytest.raises(InvalidOptions, match='exchange "sharded" is not possible'):
        pace.optimize(graph, Options(exchange="sharded"))


def test_a_budget_that_is_too_small_for_no_nodes_is_refused() -> None:
    """What is resident needs memory without any node."""
    graph = graph_of([]).model_copy(update={"resident_bytes": 100})
    with pytest.raises(InvalidOptions, match="needs 100 bytes; allow at least that"):
        planned(graph, 1)
