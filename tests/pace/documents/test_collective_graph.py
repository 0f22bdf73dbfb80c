"""What a graph document refuses, and how it says so."""

from typing import Any

import pytest

from pace.documents.graph.collective_graph import CollectiveGraph, parse_graph
from pace.documents.graph.nodes import GraphNode
from pace.errors import InvalidGraph
from tests.sharded_graphs import collective, forward, graph_of, wait


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([collective("gather", "all-gather")], 'collective "gather" has no wait'),
        (
            [GraphNode(name="a", deps=("b",)), GraphNode(name="b", deps=("a",))],
            'node "a" reads "b", which comes later',
        ),
        ([GraphNode(name="a", deps=("z",))], 'node "a" reads "z", which does not exist'),
        ([GraphNode(name="a"), GraphNode(name="a")], 'two nodes are named "a"'),
        (
            [collective("gather", "all-gather"), GraphNode(name="use", deps=("gather",)), wait("gather")],
            'node "use" reads collective "gather" without a wait',
        ),
        (
            [
                collective("gather", "all-gather"),
                wait("gather"),
                GraphNode(name="again", deps=("gather",), waits_for="gather"),
            ],
            'collective "gather" has two waits',
        ),
        ([collective("gather", "all-gather", group="pp"), wait("gather")], 'communicator "pp" has no cost'),
        ([GraphNode(name="a"), GraphNode(name="b", view_of="a")], 'node "b" is a view of "a"'),
        (
            [GraphNode(name="a"), GraphNode(name="b", deps=("a",), waits_for="a")],
            'wait "b" must read its collective',
        ),
    ],
)
def test_a_program_that_cannot_be_is_refused(nodes: list[GraphNode], message: str) -> None:
    """One line names the node at fault."""
    with pytest.raises(InvalidGraph) as error:
        graph_of(nodes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_field_is_refused() -> None:
    """A misspelled field is named."""
    document = graph_of(forward(1)).to_json().replace(b'"resident_bytes"', b'"resident"')
    with pytest.raises(InvalidGraph, match="resident"):
        parse_graph(document)


@pytest.mark.parametrize("change", [{"copy_bytes_per_s": 0}, {"wires": ()}, {"wires": ("other",)}])
def test_a_network_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    """Rates are positive, and communicators are on wires that exist."""
    graph = graph_of(forward(1))
    with pytest.raises(InvalidGraph):
        CollectiveGraph(**{**{name: getattr(graph, name) for name in type(graph).model_fields}, **change})


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (GraphNode(name="a", allocates_bytes=2**62), r"have \d+ bytes together"),
        (GraphNode(name="a", duration_s=1e13), "may take 1e.13 s together"),
    ],
)
def test_bytes_and_times_that_cannot_be_added_are_refused(node: GraphNode, message: str) -> None:
    """Sums would leave the range of integers, or of times in which seconds still count."""
    with pytest.raises(InvalidGraph, match=message):
        graph_of([node])
