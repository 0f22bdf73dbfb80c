"""Schedules of graphs: buckets, order and memory of sharded training."""

import json
import zlib

from pace.api.errors import ContentTooLarge
from pace.api.questions.kind import Question, QuestionKind, ReadLimits, Tell
from pace.api.questions.reading import about_document
from pace.client.graph_documents import GraphScheduleRequest, GraphScheduleResource, GraphScheduleSummary
from pace.documents.graph.collective_graph import CollectiveGraph, parse_graph
from pace.documents.options import Options
from pace.kinds import optimize


def refuse_large_graph(graph: CollectiveGraph, limits: ReadLimits) -> None:
    """Raise ContentTooLarge for a graph beyond the limits."""
    if len(graph.nodes) > limits.max_ops:
        raise ContentTooLarge(
            f"the graph has {len(graph.nodes)} nodes; this service takes at most {limits.max_ops}"
        )


def _read(request: GraphScheduleRequest, limits: ReadLimits) -> Question:
    graph = request.graph
    refuse_large_graph(graph, limits)
    return Question(
        kind=KIND.name,
        options=json.dumps({"memory_bytes": request.memory_bytes}),
        **about_document(graph.sha256, graph.name, graph.to_json().decode()),
    )


def _answer(graph_document: bytes, options: str, tell: Tell) -> bytes:
    del tell  # the planner cannot tell how far it is
    graph = parse_graph(zlib.decompress(graph_document))
    return optimize(graph, Options(**json.loads(options))).to_json()


_COSTS = [
    {"op": op, "cost": {"kind": "affine", "latency_s": 1e-4, "seconds_per_byte": 1e-9}}
    for op in ("all-gather", "reduce-scatter")
]


def _layer(name: str) -> list[dict[str, object]]:
    """Return a unit that is gathered, computes, and reduces its gradients."""
    gather, scatter = f"gather {name}", f"scatter {name}"
    call = {"communicator": "data", "dtype": "bfloat16"}
    return [
        {
            "name": gather,
            "collective": {"op": "all-gather", "input_bytes": 500_000, "output_bytes": 2_000_000, **call},
        },
        {"name": f"wait {gather}", "deps": [gather], "waits_for": gather},
        {
            "name": name,
            "deps": [f"wait {gather}"],
            "duration_s": 0.002,
            "allocates_bytes": 2_000_000,
        },
        {
            "name": scatter,
            "deps": [name],
            "collective": {"op": "reduce-scatter", "input_bytes": 2_000_000, "output_bytes": 500_000, **call},
        },
        {"name": f"wait {scatter}", "deps": [scatter], "waits_for": scatter, "returned": True},
    ]


EXAMPLE_GRAPH = {
    "schema_version": 1,
    "exchange": "graph",
    "name": "two-layers-fsdp",
    "wires": ["network"],
    "communicators": [{"name": "data", "ranks": 4, "wire": "network", "costs": _COSTS}],
    "copy_bytes_per_s": 1e12,
    "nodes": [*_layer("layer 1"), *_layer("layer 2")],
}

KIND = QuestionKind(
    name="graph",
    noun="graph schedule",
    path="/v1/graph-schedules",
    tag="Graphs",
    title="Schedule a graph",
    description="Compute the schedule of a graph of sharded training within a memory budget. An equal "
    "request gets the stored schedule.",
    example={"graph": EXAMPLE_GRAPH, "memory_bytes": 10_000_000},
    request=GraphScheduleRequest,
    resource=GraphScheduleResource,
    summary=GraphScheduleSummary,
    columns={"name": "input_name", "graph_sha256": "input_sha256"},
    parts={"graph": parse_graph},
    read=_read,
    answer=_answer,
    samples=((EXAMPLE_GRAPH, json.dumps({"memory_bytes": None})),),
    simulates=False,
    work="graph solve",
)
