"""What-ifs of graphs: other ranks, bandwidths and memory budgets, under policies."""

import zlib

from pace.api.errors import ContentTooLarge
from pace.api.questions.graph_schedules import EXAMPLE_GRAPH, refuse_large_graph
from pace.api.questions.kind import DoneCount, Question, QuestionKind, ReadLimits, Tell
from pace.api.questions.reading import about_document, canonical_json
from pace.client.graph_documents import GraphWhatIfRequest, GraphWhatIfResource, GraphWhatIfSummary
from pace.documents.graph.collective_graph import parse_graph
from pace.whatif.graphs import GraphGrid, what_if_graph


def _read(request: GraphWhatIfRequest, limits: ReadLimits) -> Question:
    graph, grid = request.graph, request.grid
    refuse_large_graph(graph, limits)
    if grid.num_cells > limits.max_cells:
        raise ContentTooLarge(
            f"the grid asks for {grid.num_cells} simulations; this service takes at most {limits.max_cells}"
        )
    return Question(
        kind=KIND.name,
        options=canonical_json(grid),
        num_steps=grid.num_cells,
        **about_document(graph.sha256, graph.name, graph.to_json().decode()),
    )


def _answer(graph_document: bytes, options: str, tell: Tell) -> bytes:
    graph = parse_graph(zlib.decompress(graph_document))
    result = what_if_graph(graph, GraphGrid.model_validate_json(options), progress=DoneCount(tell))
    return result.model_dump_json().encode()


KIND = QuestionKind(
    name="graph-grid",
    noun="graph what-if",
    path="/v1/graph-what-if",
    tag="Graphs",
    title="Simulate a grid of what-ifs of a graph",
    description="Simulate a graph of sharded training with other ranks, bandwidths and memory budgets under "
    "every policy. An equal request gets the stored answer.",
    example={
        "graph": EXAMPLE_GRAPH,
        "grid": {"bandwidth_factor": [0.5, 1], "policies": ["as-traced", "pace"]},
    },
    request=GraphWhatIfRequest,
    resource=GraphWhatIfResource,
    summary=GraphWhatIfSummary,
    columns={"name": "input_name", "graph_sha256": "input_sha256", "num_cells": "num_steps"},
    parts={"graph": parse_graph},
    read=_read,
    answer=_answer,
    samples=((EXAMPLE_GRAPH, GraphGrid(policies=("pace",)).model_dump_json()),),
)
