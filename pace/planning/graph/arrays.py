"""Converts a graph document to the solver's arrays."""

import numpy as np

from pace.documents.graph.collective_graph import BucketKey, CollectiveGraph
from pace.solver.graph.adjacency import Adjacency
from pace.solver.graph.program import COLLECTIVE, OP, WAIT, Program


def bucket_keys(graph: CollectiveGraph) -> tuple[BucketKey, ...]:
    """Return the keys of a graph's collectives, numbered as in ``Program.key``."""
    found = {graph.bucket_key(node): None for node in graph.nodes if node.collective is not None}
    return tuple(found)


def program_of(graph: CollectiveGraph) -> Program:
    """Return the solver's program of a graph; nodes keep their numbers."""
    n = len(graph.nodes)
    numbers = graph.numbers
    keys = {key: number for number, key in enumerate(bucket_keys(graph))}
    communicators = {each.name: each for each in graph.communicators}
    curves = {
        (each.name, cost.op): cost.curve(each.ranks) for each in graph.communicators for cost in each.costs
    }
    kind = np.full(n, OP)
    wire, key = np.full(n, -1), np.full(n, -1)
    input_bytes, output_bytes = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    storage = np.arange(n)
    size_bytes = np.zeros(n, dtype=np.int64)
    kept = np.zeros(n, dtype=np.bool_)
    for number, node in enumerate(graph.nodes):
        call = node.collective
        if call is not None:
            kind[number] = COLLECTIVE
            wire[number] = graph.wires.index(communicators[call.communicator].wire)
            key[number] = keys[graph.bucket_key(node)]
            input_bytes[number], output_bytes[number] = call.input_bytes, call.output_bytes
            size_bytes[number] = call.output_bytes
        elif node.waits_for is not None:
            kind[number] = WAIT
            storage[number] = numbers[node.waits_for]
        elif node.view_of is not None:
            storage[number] = storage[numbers[node.view_of]]
        else:
            size_bytes[number] = node.allocates_bytes
        kept[storage[number]] |= node.returned
    return Program(
        kind=kind,
        duration=np.array([node.duration_s for node in graph.nodes], dtype=np.float64),
        deps=Adjacency.of([[numbers[dep] for dep in node.deps] for node in graph.nodes]),
        wire=wire,
        key=key,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        storage=storage,
        size_bytes=size_bytes,
        kept=kept,
        costs=tuple(curves[communicator, op] for op, communicator, _ in keys),
        num_wires=len(graph.wires),
        copy_bytes_per_s=graph.copy_bytes_per_s,
        resident_bytes=graph.resident_bytes,
        compute_slowdown=graph.compute_slowdown,
    )
