"""Policies for graphs, on programs small enough to work out by hand."""

from typing import Any

import pytest
from hypothesis import given, settings

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.errors import InvalidOptions
from pace.kinds.comparison import simulate
from pace.planning.graph.arrays import program_of
from pace.simulation import GRAPH_POLICIES, SimulationOptions
from pace.simulation.graph.policies import Blocks, Fsdp2, Inductor, ZeroThree
from pace.simulation.graph.run import GraphSimulation, run_graph_policy
from pace.simulation.graph.units import cut_into_units, sharded_units
from tests.sharded_graphs import FULL, backward, collective, forward, graph_of, graphs, wait


def order_of(run: GraphSimulation, graph: CollectiveGraph) -> list[str]:
    """Return the names of the nodes in the order of the plan."""
    return [graph.nodes[number].name for number in run.plan.order.tolist()]


def test_fsdp2_gathers_a_unit_ahead() -> None:
    """A unit's gather follows the wait of the unit before it, or of the one two before it."""
    graph = graph_of(forward(4))
    run = run_graph_policy(graph, Fsdp2(unit_collectives=1))
    order = order_of(run, graph)
    assert order.index("wait gather 0") < order.index("gather 1") < order.index("layer 0")
    assert order.index("wait gather 1") < order.index("gather 2") < order.index("layer 1")
    assert run.iteration_s == 0.625 + 4 * 2
    order = order_of(run_graph_policy(graph, Fsdp2(unit_collectives=1, ahead=2)), graph)
    assert order[:4] == ["gather 0", "wait gather 0", "gather 1", "gather 2"]
    assert order.index("wait gather 1") < order.index("gather 3") < order.index("layer 1")
    order = order_of(run_graph_policy(graph, Fsdp2(unit_collectives=1, ahead=0)), graph)
    assert order == [node.name for node in graph.nodes]


def test_fsdp2_waits_for_a_reduce_scatter_before_the_next() -> None:
    """With one input buffer, at most one reduce-scatter is under way; with two, two are."""
    graph = graph_of(backward(4))
    order = order_of(run_graph_policy(graph, Fsdp2(unit_collectives=1)), graph)
    assert order.index("wait scatter 0") < order.index("scatter 1") < order.index("wait scatter 1")
    order = order_of(run_graph_policy(graph, Fsdp2(unit_collectives=1, max_input_buffers=2)), graph)
    assert order.index("scatter 1") < order.index("wait scatter 0") < order.index("scatter 2")


def test_blocks_are_issued_before_the_wait_of_the_block_before() -> None:
    """The gather comes before that wait; the wait for gradients comes behind the next block's issue."""
    graph = graph_of(backward(4))
    order = order_of(run_graph_policy(graph, Blocks(unit_collectives=1)), graph)
    assert order.index("gather 1") < order.index("wait gather 0")
    assert order.index("scatter 1") < order.index("wait scatter 0") < order.index("scatter 2")


def test_a_unit_of_several_parameters_is_one_bucket() -> None:
    """Two units of two gathers each are two calls, and their copies take time."""
    graph = graph_of(forward(4), copy_bytes_per_s=2 * FULL)
    run = run_graph_policy(graph, Fsdp2(unit_collectives=2))
    assert [len(bucket) for bucket in run.plan.buckets] == [2, 2]
    assert run.num_calls == 2
    assert run.timeline.compute_s == 4 * 2 + 4 * (FULL + FULL / 4) * 2 / (2 * FULL)


def test_zero_three_gathers_what_fits_its_prefetch_bucket() -> None:
    """A parameter has 64 elements: behind the first wait, 65 elements are two parameters."""
    graph = graph_of(forward(4))
    order = order_of(run_graph_policy(graph, ZeroThree(prefetch_bucket_size=65)), graph)
    assert order[:5] == ["gather 0", "wait gather 0", "gather 1", "gather 2", "layer 0"]
    order = order_of(run_graph_policy(graph, ZeroThree(prefetch_bucket_size=0)), graph)
    assert order == [node.name for node in graph.nodes]


def test_zero_three_keeps_to_its_live_parameters() -> None:
    """With room for one parameter there is nothing to prefetch."""
    graph = graph_of(forward(4))
    run = run_graph_policy(graph, ZeroThree(max_live_parameters=64))
    assert order_of(run, graph) == [node.name for node in graph.nodes]


def test_zero_three_reduces_full_buckets() -> None:
    """Gradients of 64 elements: two fill a bucket of 128."""
    graph = graph_of(backward(4))
    run = run_graph_policy(graph, ZeroThree(prefetch_bucket_size=0, reduce_bucket_size=128))
    assert [len(bucket) for bucket in run.plan.buckets] == [2, 2]


def test_blocks_are_found_where_sizes_repeat() -> None:
    """An embedding, three blocks of two parameters, and a head."""
    sizes = (9, 1, 2, 1, 2, 1, 2, 7)
    nodes = []
    for number, size in enumerate(sizes):
        gather = collective(f"gather {number}", "all-gather")
        call = gather.collective
        assert call is not None
        sized = call.model_copy(update={"input_bytes": size})
        nodes += [gather.model_copy(update={"collective": sized}), wait(f"gather {number}")]
    program = program_of(graph_of(nodes))
    members = program.collectives().tolist()
    found = [len(unit) for unit in cut_into_units(program, members, 0, from_end=False)[0]]
    assert found == [1, 2, 2, 2, 1]
    assert [len(unit) for unit in cut_into_units(program, members[:1], 0, from_end=True)[0]] == [1]
    assert cut_into_units(program, [], 0, from_end=True) == ((), range(0))
    found = [len(unit) for unit in cut_into_units(program, members, 0, 2, from_end=False)[0]]
    assert found == [1, 4, 2, 1]
    found = [len(unit) for unit in cut_into_units(program, members, 0, 2, from_end=True)[0]]
    assert found == [1, 2, 4, 1]


def test_units_of_the_last_layers_align_with_the_end() -> None:
    """Seven equal gradients in units of two: the first unit is short."""
    program = program_of(graph_of(backward(7)))
    assert [len(unit) for unit in sharded_units(program, 2).reductions] == [1, 2, 2, 2]


@settings(max_examples=40)
@given(graphs())
def test_every_policy_runs_every_graph(graph: CollectiveGraph) -> None:
    """Each plan has all nodes, no node before what it reads, and ends no earlier than the compute."""
    for name, found in simulate(graph, options=SimulationOptions(knobs={"unit_collectives": 2})).items():
        assert isinstance(found.run, GraphSimulation)
        order = found.run.plan.order.tolist()
        assert sorted(order) == list(range(len(graph.nodes))), name
        place = {node: at for at, node in enumerate(order)}
        for number, node in enumerate(graph.nodes):
            assert all(place[graph.numbers[dep]] < place[number] for dep in node.deps), name
        assert found.iteration_s >= sum(node.duration_s for node in graph.nodes) * (1 - 1e-9)
        assert found.run.memory.peak_bytes >= graph.resident_bytes


def test_graphs_have_policies_of_their_own() -> None:
    """Policies and options of profiles are refused, and so are those of graphs for profiles."""
    graph = graph_of(forward(2))
    assert tuple(simulate(graph)) == GRAPH_POLICIES
    with pytest.raises(InvalidOptions, match=r'"ddp" needs a profile .* Otherwise choose one of pace, as'):
        simulate(graph, "ddp")
    with pytest.raises(InvalidOptions, match='jitter: exchange "graph" only has knobs'):
        simulate(graph, options=SimulationOptions(jitter=0.1))
    with pytest.raises(InvalidOptions, match='no knob "bucket_bytes"'):
        simulate(graph, options=SimulationOptions(knobs={"bucket_bytes": 1}))


def test_inductor_hides_gathers_and_buckets_in_advance() -> None:
    """With a cap of two parameters, gathers are fused by twos, and the second call hides behind compute."""
    graph = graph_of(forward(4))
    run = run_graph_policy(graph, Inductor(bucket_cap_mb=2 * FULL / 2**20))
    assert [len(bucket) for bucket in run.plan.buckets] == [2, 2]
    order = order_of(run, graph)
    assert order.index("gather 2") < order.index("layer 0")
    assert run.iteration_s < 4 * 2 + 2 * 0.75


def test_inductor_keeps_to_its_memory() -> None:
    """Gathers run ahead unless none may be in flight, or memory is counted and may not grow."""
    graph = graph_of(forward(3))
    alone: dict[str, Any] = {"bucket_cap_mb": FULL / 2**20, "max_coll_distance": 0}  # and no second bucketing
    assert run_graph_policy(graph, Inductor(**alone)).iteration_s == 0.625 + 3 * 2
    without = Inductor(**alone, max_in_flight_gb=0.0)
    assert run_graph_policy(graph, without).iteration_s == 3 * (0.625 + 2)
    growth: dict[str, Any] = {"max_memory_increase_gb": 0.0, "max_memory_increase_ratio": 0.0}
    assert run_graph_policy(graph, Inductor(**alone, **growth, device="h100")).iteration_s == 3 * (0.625 + 2)
    # On a machine without a GPU torch counts no memory, and only the growth that it allows limits gathers.
    growth["max_memory_increase_gb"] = 1.0
    assert run_graph_policy(graph, Inductor(**alone, **growth)).iteration_s == 0.625 + 3 * 2


def test_inductor_fuses_what_nothing_hides() -> None:
    """Without compute before them, gathers of one size share a bucket in the second step."""
    graph = graph_of(forward(3))
    run = run_graph_policy(graph, Inductor(bucket_cap_mb=FULL / 2**20, max_in_flight_gb=0.0))
    assert [len(bucket) for bucket in run.plan.buckets] == [3]
