"""The augmented graph: longest paths against networkx, cycles, and paths that break Assumption A."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given

from pace import Profile
from pace.documents.op_graph import CyclicGraph, build_graph, path_from_marked
from tests.strategies import affine, layered, profiles, properties, times


def augmented(profile: Profile) -> "nx.DiGraph[str]":
    """Return the graph with durations on edges, between an op's start and end and from end to start."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    last: dict[str, str] = {}
    for op in profile.ops:
        graph.add_edge(f"start {op.name}", f"end {op.name}", weight=op.duration_s)
        graph.add_edge("window", f"start {op.name}", weight=0.0)
        before = list(op.deps)
        if op.stream is not None:
            before += [last[op.stream]] if op.stream in last else []
            last[op.stream] = op.name
        for name in before:
            graph.add_edge(f"end {name}", f"start {op.name}", weight=0.0)
    return graph


def longest(graph: "nx.DiGraph[str]", source: str | None, target: str | None) -> float:
    """Return the length of the longest path, by removing what is not between the two ends."""
    kept = set(graph)
    if source is not None:
        kept &= nx.descendants(graph, source) | {source}
    if target is not None:
        kept &= nx.ancestors(graph, target) | {target}
    return float(nx.dag_longest_path_length(graph.subgraph(kept)))


@given(profiles(duration=times()))
@properties(60)
def test_timing_is_the_longest_paths_of_networkx(profile: Profile) -> None:
    """Ready times, tails and the compute bound, on any profile."""
    graph = augmented(profile)
    for number, gradient in enumerate(profile.gradients):
        ready = longest(graph, None, f"end {gradient.producer}")
        consumers = [op.name for op in profile.ops if gradient.name in op.waits_for]
        tail = max((longest(graph, f"start {name}", None) for name in consumers), default=0.0)
        assert profile.timing.ready_s[number] == pytest.approx(ready, rel=1e-12)
        assert profile.timing.tail_s[number] == pytest.approx(tail, rel=1e-12)
    assert profile.timing.compute_s == pytest.approx(longest(graph, None, None), rel=1e-12)


def test_ops_of_one_stream_run_one_after_another() -> None:
    """List order is the order of a stream; ops without a stream wait for their dependencies only."""
    graph = build_graph([1, 2, 4, 8], [[], [], [], [0]], ["s", "s", None, None])
    assert graph.end_times().tolist() == [1, 3, 4, 9]
    assert graph.tails().tolist() == [9, 2, 4, 8]


def test_an_empty_graph_has_no_times() -> None:
    """No ops, nothing to do."""
    graph = build_graph([], [], [])
    assert graph.order == ()
    assert graph.end_times().tolist() == []


def test_a_cycle_is_carried_by_the_error() -> None:
    """Op 0 waits for op 2, which waits for op 1, which runs after op 0 on a stream."""
    with pytest.raises(CyclicGraph) as refusal:
        build_graph([1, 1, 1], [[2], [], [1]], ["s", "s", None])
    cycle = refusal.value.cycle
    assert sorted(cycle) == [0, 1, 2]
    edges = {(2, 0), (0, 1), (1, 2)}
    assert set(zip(cycle, [*cycle[1:], cycle[0]], strict=True)) == edges


def test_an_op_that_waits_for_itself_is_a_cycle() -> None:
    """The shortest cycle there is."""
    with pytest.raises(CyclicGraph) as refusal:
        build_graph([1], [[0]], [None])
    assert refusal.value.cycle == (0,)


def test_paths_lead_from_a_marked_op_to_the_target() -> None:
    """Along 0 -> 1 -> 3; a marked target is a path by itself, and no mark is no path."""
    graph = build_graph([1] * 4, [[], [0], [], [1, 2]], [None] * 4)
    assert path_from_marked(graph, [0], [2, 3]) == [0, 1, 3]
    assert path_from_marked(graph, [3], [3]) == [3]
    assert path_from_marked(graph, [], [3]) is None
    assert path_from_marked(graph, [3], [2]) is None


def test_a_gradient_that_nobody_waits_for_has_no_tail() -> None:
    """And one that several ops wait for has the longest."""
    profile = layered([1, 1], allreduce=affine(0, 1), backward_s=[1, 1], forward_s=[2, 4])
    first, second = profile.ops[2:]
    both = profile.replace(
        ops=(*profile.ops[:2], first.model_copy(update={"waits_for": ("g1", "g2")}), second)
    )
    np.testing.assert_array_equal(both.timing.tail_s, [6, 6])
    none = profile.replace(ops=(*profile.ops[:2], first, second.model_copy(update={"waits_for": ()})))
    np.testing.assert_array_equal(none.timing.tail_s, [0, 6])
