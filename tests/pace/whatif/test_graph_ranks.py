"""Graphs with other numbers of ranks, held against graphs that were written by hand for these numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pace.documents.collective_costs import AffineAllReduce, SampledAllReduce
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.graph.nodes import CollectiveCall, CollectiveOp, Communicator, GraphNode, OpCost
from pace.errors import InvalidOptions
from pace.kinds import check, optimize
from pace.simulation import make_policy
from pace.simulation.graph.run import run_graph_policy
from pace.whatif.graph_ranks import with_ranks
from pace.whatif.graphs import GraphGrid, what_if_graph
from tests.sharded_graphs import backward, collective, forward, graph_of, wait

WHOLE = 3 * 2**12
LATENCY_S, WHOLE_S = 1 / 64, 1 / 2**13
"""Latency of one message, and seconds for one byte of a whole at full rate."""


def line(op: CollectiveOp, ranks: int) -> OpCost:
    """Return a ring's cost by input bytes: a shard of an all-gather, the whole of other ops."""
    messages, share = ranks - 1, (ranks - 1) / ranks
    inputs = ranks if op == "all-gather" else 1
    cost = AffineAllReduce(latency_s=messages * LATENCY_S, seconds_per_byte=WHOLE_S * share * inputs)
    return OpCost(op=op, cost=cost)


def call(name: str, op: CollectiveOp, group: str, sizes: tuple[int, int], *deps: str) -> list[GraphNode]:
    """Return a collective and its wait."""
    sent = CollectiveCall(
        op=op, communicator=group, dtype="float32", input_bytes=sizes[0], output_bytes=sizes[1]
    )
    return [GraphNode(name=name, deps=deps, collective=sent), wait(name)]


def hsdp(ranks: int, *, layers: int = 2) -> CollectiveGraph:
    """Return a backward pass by hand: casts of shards, gathers, scatters, sums over two replicas, a norm."""
    shard = WHOLE // ranks
    nodes: list[GraphNode] = []
    squares: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    for layer in range(layers):
        gather, scatter, reduce = (f"{what} {layer}" for what in ("gather", "scatter", "sum"))
        cast, compute, divide, square = (f"{what} {layer}" for what in ("cast", "layer", "divide", "square"))
        nodes += [
            GraphNode(name=cast, duration_s=shard / 2**12, allocates_bytes=shard),
            *call(gather, "all-gather", "shard", (shard, WHOLE), cast),
            GraphNode(name=compute, duration_s=0.5, deps=(f"wait {gather}", *before), allocates_bytes=WHOLE),
            *call(scatter, "reduce-scatter", "shard", (WHOLE, shard), compute),
            *call(reduce, "all-reduce", "replicate", (shard, shard), f"wait {scatter}"),
            GraphNode(
                name=divide,
                duration_s=shard / 2**12,
                deps=(f"wait {reduce}",),
                allocates_bytes=shard,
                returned=True,
            ),
            GraphNode(name=square, duration_s=shard / 2**13, deps=(divide,), allocates_bytes=4),
        ]
        squares, before = (*squares, square), (compute,)
    nodes += [
        GraphNode(name="norm", duration_s=1 / 64, deps=squares, allocates_bytes=4),
        *call("norms", "all-reduce", "shard", (4, 4), "norm"),
        *[
            GraphNode(
                name=f"clip {layer}",
                duration_s=shard / 2**12,
                deps=(f"divide {layer}", "wait norms"),
                allocates_bytes=shard,
                returned=True,
            )
            for layer in range(layers)
        ],
    ]
    ops: tuple[CollectiveOp, ...] = ("all-gather", "reduce-scatter", "all-reduce")
    return CollectiveGraph(
        name="hsdp",
        wires=("inside", "between"),
        communicators=(
            Communicator(
                name="shard", ranks=ranks, wire="inside", costs=tuple(line(op, ranks) for op in ops)
            ),
            Communicator(name="replicate", ranks=2, wire="between", costs=(line("all-reduce", 2),)),
        ),
        copy_bytes_per_s=1e6,
        resident_bytes=1000 + layers * shard,
        resident_shard_bytes=layers * shard,
        nodes=tuple(nodes),
    )


@pytest.mark.parametrize(("before", "after"), [(4, 8), (4, 2), (2, 6), (12, 3)])
def test_the_graph_is_that_of_so_many_ranks(before: int, after: int) -> None:
    """Nodes, memory and times are those of the graph written by hand; so are plans and policies."""
    changed, by_hand = with_ranks(hsdp(before), after), hsdp(after)
    assert [node.model_copy(update={"duration_s": 0}) for node in changed.nodes] == [
        node.model_copy(update={"duration_s": 0}) for node in by_hand.nodes
    ]
    assert [node.duration_s for node in changed.nodes] == pytest.approx(
        [node.duration_s for node in by_hand.nodes]
    )
    for one, other in zip(changed.communicators, by_hand.communicators, strict=True):
        assert (one.name, one.ranks, one.wire) == (other.name, other.ranks, other.wire)
        for cost, by_line in zip(one.costs, other.costs, strict=True):
            for size in (4.0, 1000.0, 1e6):
                assert cost.curve(after)(size) == pytest.approx(float(by_line.curve(after)(size)))
    assert changed.resident_bytes == by_hand.resident_bytes
    assert changed.resident_shard_bytes == by_hand.resident_shard_bytes
    for policy in ("as-traced", "fsdp2", "pace"):
        found, expected = (
            run_graph_policy(graph, make_policy(policy, "graph")) for graph in (changed, by_hand)
        )
        assert found.iteration_s == pytest.approx(expected.iteration_s)
        assert found.memory.peak_bytes == expected.memory.peak_bytes


@pytest.mark.parametrize(
    "graph", [hsdp(4), graph_of(forward(3)), graph_of(backward(3))], ids=["hsdp", "forward", "backward"]
)
def test_as_many_ranks_change_nothing(graph: CollectiveGraph) -> None:
    """Not a byte of the document; and there and back again is the same graph, up to rounding."""
    assert with_ranks(graph, 4).to_json() == graph.to_json()
    again = with_ranks(with_ranks(graph, 8), 4)
    assert [each.collective for each in again.nodes] == [each.collective for each in graph.nodes]
    assert [each.allocates_bytes for each in again.nodes] == [each.allocates_bytes for each in graph.nodes]
    assert again.resident_bytes == graph.resident_bytes
    run, same = (run_graph_policy(each, make_policy("fsdp2", "graph")) for each in (graph, again))
    assert run.iteration_s == pytest.approx(same.iteration_s)


@settings(max_examples=25, deadline=None)
@given(
    ranks=st.sampled_from((2, 3, 4, 6, 8, 12)),
    after=st.sampled_from((2, 3, 4, 6, 8, 12, 24)),
    layers=st.integers(1, 4),
)
def test_no_plan_is_below_the_bound(ranks: int, after: int, layers: int) -> None:
    """The checker, which shares no code with the planner, has no objection to plan and bound."""
    graph = with_ranks(hsdp(ranks, layers=layers), after)
    schedule = optimize(graph)
    assert schedule.predicted.lower_bound_s <= schedule.predicted.iteration_s * (1 + 1e-9)
    assert check(graph, schedule) == []


@settings(deadline=None)
@given(
    points=st.lists(
        st.tuples(st.integers(1, 2**24), st.integers(1, 1000)),
        min_size=1,
        max_size=5,
        unique_by=lambda p: p[0],
    ),
    before=st.integers(2, 64),
    after=st.integers(2, 64),
    size=st.integers(1, 2**26),
)
def test_measured_costs_keep_what_messages_of_one_size_take(
    points: list[tuple[int, int]], before: int, after: int, size: int
) -> None:
    """A ring sends m - 1 messages: shards in all-gathers, parts of the whole in others."""
    cost = SampledAllReduce(samples=tuple((float(at), seconds / 1000) for at, seconds in points))
    base = graph_of(forward(1))
    ops: tuple[CollectiveOp, ...] = ("all-gather", "all-reduce")
    group = Communicator(
        name="dp", ranks=before, wire="wire", costs=tuple(OpCost(op=op, cost=cost) for op in ops)
    )
    sizes = {"input_bytes": 64 * after, "output_bytes": 64 * after * before}
    gather = base.nodes[0]
    assert gather.collective is not None
    gather = gather.model_copy(update={"collective": gather.collective.model_copy(update=sizes)})
    graph = base.model_copy(update={"communicators": (group,), "nodes": (gather, *base.nodes[1:])})
    gathers, reduces = with_ranks(graph, after).communicators[0].costs
    messages = (after - 1) / (before - 1)
    curve = cost.cost(before)
    assert gathers.curve(after)(size) == pytest.approx(float(curve(size)) * messages, rel=1e-6)
    whole = size * before  # in parts of `size` bytes
    assert reduces.curve(after)(size * after) == pytest.approx(float(curve(whole)) * messages, rel=1e-6)


def test_what_ifs_have_cells_for_each_number() -> None:
    """A point for each number of ranks and bandwidth; without numbers, answers have no such field."""
    graph = hsdp(4)
    result = what_if_graph(
        graph, GraphGrid(ranks=(2, 4, 8), bandwidth_factor=(1.0, 2.0), policies=("as-traced", "pace"))
    )
    assert [(cell.ranks, cell.bandwidth_factor) for cell in result.cells[::2]] == [
        (ranks, factor) for ranks in (2, 4, 8) for factor in (1.0, 2.0)
    ]
    plain = what_if_graph(graph, GraphGrid(policies=("as-traced", "pace")))
    assert [cell.iteration_s for cell in result.cells[4:6]] == [cell.iteration_s for cell in plain.cells]
    for cell in result.cells:
        assert cell.iteration_s is not None
        assert cell.lower_bound_s <= cell.iteration_s * (1 + 1e-9)
    assert {cell["ranks"] for cell in result.to_document()["cells"]} == {2, 4, 8}
    assert result.to_csv().startswith("ranks,bandwidth_factor,")
    assert "ranks" not in plain.to_csv()
    assert "ranks" not in plain.to_document()["cells"][0]


def with_nodes(graph: CollectiveGraph, *nodes: GraphNode) -> CollectiveGraph:
    """Return a graph with further nodes at its end."""
    return graph.model_copy(update={"nodes": (*graph.nodes, *nodes)})


def of_two_groups() -> CollectiveGraph:
    """Return a forward pass that gathers over two process groups."""
    nodes = [*forward(2), collective("other", "all-gather", group="tp"), wait("other")]
    return graph_of(nodes)


def of_one_rank() -> CollectiveGraph:
    """Return a forward pass on one rank."""
    graph = hsdp(2)
    communicators = tuple(each.model_copy(update={"ranks": 1}) for each in graph.communicators)
    return graph.model_copy(update={"communicators": communicators})


REFUSED = {
    "one rank": (of_one_rank(), 4, 'group "shard" has 1 rank'),
    "two groups": (of_two_groups(), 8, 'several process groups, "dp" and "tp"'),
    "nothing sharded": (
        graph_of([collective("sum", "all-reduce"), wait("sum")]),
        8,
        "gathers no parameters and reduce-scatters no gradients",
    ),
    "indivisible": (hsdp(4), 5, 'the 12,288 bytes of "cast 0" do not divide into 5 shards'),
    "half an element": (
        graph_of(forward(1)),
        128,
        'the 256 bytes of "gather 0" do not divide into 128 shards',
    ),
    "other sizes": (
        graph_of([*call("odd", "all-gather", "dp", (64, 128))]),
        8,
        'all-gather "odd" has 64 bytes in and 128 out, which does not fit 4 ranks',
    ),
    "activations": (
        graph_of([*forward(1), *call("late", "all-gather", "dp", (64, 256), "layer 0")]),
        8,
        'all-gather "late" does not gather parameters only',
    ),
    "mixed": (
        with_nodes(hsdp(4), GraphNode(name="mix", deps=("divide 0", "layer 1"), allocates_bytes=8)),
        8,
        'node "mix" reads the shard "divide 0" and also "layer 1"',
    ),
    "too few": (hsdp(4), 1, "ranks 1: expected 2"),
}


@pytest.mark.parametrize(("graph", "ranks", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_unclear_is_refused(graph: CollectiveGraph, ranks: int, words: str) -> None:
    """In one line that names the group, the node or the sizes."""
    with pytest.raises(InvalidOptions) as refused:
        with_ranks(graph, ranks)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_communicators_of_one_process_group_change_together() -> None:
    """As compiled graphs name them: one communicator for each op, and the group's name beside it."""
    graph = hsdp(4)
    shard, replicate = graph.communicators
    parts = {cost.op: f"shard {cost.op}" for cost in shard.costs}
    communicators = [
        Communicator(name=parts[cost.op], ranks=4, wire="inside", costs=(cost,), group="shard")
        for cost in shard.costs
    ]
    nodes = [
        node
        if node.collective is None or node.collective.communicator != "shard"
        else node.model_copy(
            update={
                "collective": node.collective.model_copy(update={"communicator": parts[node.collective.op]})
            }
        )
        for node in graph.nodes
    ]
    parted = graph.model_copy(update={"communicators": (*communicators, replicate), "nodes": tuple(nodes)})
    one, other = (
        run_graph_policy(with_ranks(each, 8), make_policy("as-traced", "graph")) for each in (graph, parted)
    )
    assert one.iteration_s == other.iteration_s
    assert np.array_equal(one.memory.in_use_bytes, other.memory.in_use_bytes)
