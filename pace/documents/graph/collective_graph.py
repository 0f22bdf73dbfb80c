"""The graph document: a program of ops and collectives in the order in which it runs today.

What its times and bytes mean is said in ``pace.solver.graph.program``.
"""

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from pace.documents.base import Bytes, Index, JsonDocument, load, parse, read_file, repeated
from pace.documents.graph.nodes import CollectiveOp, Communicator, GraphNode
from pace.documents.profile import MAX_SLOWDOWN, MAX_TOTAL_BYTES, MAX_TOTAL_S, DType, Name
from pace.errors import InvalidGraph

BucketKey = tuple[CollectiveOp, str, DType | None]


class CollectiveGraph(JsonDocument):
    """One iteration, or one pass of it, as compiled or traced.

    A graph that was built is valid: names are unique, nodes come after the nodes that they read, and each
    collective has one wait.

    Attributes
    ----------
    wires
        Names of network interfaces. Each carries one collective at a time, in the order in which they are
        issued, or two if a plan gives some collectives a separate process group.
    copy_bytes_per_s
        Memory bandwidth of the device in bytes/s, at which buckets are copied. A copy reads and writes.
    resident_bytes
        Memory that is in use from before the first node until after the last, such as inputs.
    resident_shard_bytes
        Part of `resident_bytes` that holds shards of parameters, and is smaller with more ranks. 0 if not
        known.
    compute_slowdown
        Factor by which ops and copies take longer while a wire carries a collective; 1 for no slowdown.
    """

    refused_as = InvalidGraph

    schema_version: Literal[1] = 1
    exchange: Literal["graph"] = "graph"
    name: Name
    wires: Annotated[tuple[Name, ...], Field(min_length=1)]
    communicators: tuple[Communicator, ...]
    copy_bytes_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    resident_bytes: Bytes = 0
    resident_shard_bytes: Annotated[Bytes, Field(exclude_if=lambda size: size == 0)] = 0
    compute_slowdown: Annotated[
        float, Field(ge=1, le=MAX_SLOWDOWN, allow_inf_nan=False, exclude_if=lambda factor: factor == 1)
    ] = 1.0
    nodes: tuple[GraphNode, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.resident_shard_bytes > self.resident_bytes:
            raise ValueError(
                f"resident_shard_bytes ({self.resident_shard_bytes:,}) are part of resident_bytes, which are "
                f"only {self.resident_bytes:,}"
            )
        for kind, names in (
            ("wire", list(self.wires)),
            ("communicator", [each.name for each in self.communicators]),
            ("node", [node.name for node in self.nodes]),
        ):
            if (twice := repeated(names)) is not None:
                raise ValueError(f'two {kind}s are named "{twice}"')
        for communicator in self.communicators:
            if communicator.wire not in self.wires:
                raise ValueError(
                    f'communicator "{communicator.name}" is on wire "{communicator.wire}", '
                    "which does not exist"
                )
            if (twice := repeated(cost.op for cost in communicator.costs)) is not None:
                raise ValueError(f'communicator "{communicator.name}" has two costs of {twice}')
        self._refuse_disorder()
        self._refuse_unwaited()
        self._refuse_what_cannot_be_added()
        return self

    def _refuse_disorder(self) -> None:
        every = {node.name for node in self.nodes}
        costs = {(each.name, cost.op) for each in self.communicators for cost in each.costs}
        seen: dict[str, GraphNode] = {}
        for node in self.nodes:
            for dep in node.deps:
                if dep not in seen:
                    why = (
                        "comes later: they form a cycle or are out of order"
                        if dep in every
                        else "does not exist"
                    )
                    raise ValueError(f'node "{node.name}" reads "{dep}", which {why}')
                if seen[dep].collective is not None and node.waits_for != dep:
                    raise ValueError(f'node "{node.name}" reads collective "{dep}" without a wait')
            if node.view_of is not None and (node.view_of not in node.deps or node.allocates_bytes):
                raise ValueError(
                    f'node "{node.name}" is a view of "{node.view_of}": '
                    "it must read that, and allocate nothing"
                )
            call = node.collective
            if call is not None:
                if node.duration_s or node.waits_for or node.allocates_bytes or node.view_of is not None:
                    raise ValueError(
                        f'collective "{node.name}" must not have a duration, memory or wait of its own'
                    )
                if (call.communicator, call.op) not in costs:
                    raise ValueError(
                        f'collective "{node.name}": '
                        f'communicator "{call.communicator}" has no cost of {call.op}'
                    )
            seen[node.name] = node

    def _refuse_unwaited(self) -> None:
        waits: dict[str, str] = {}
        collectives = {node.name for node in self.nodes if node.collective is not None}
        for node in self.nodes:
            if node.waits_for is None:
                continue
            if node.deps != (node.waits_for,) or node.waits_for not in collectives:
                raise ValueError(f'wait "{node.name}" must read its collective and nothing else')
            if node.duration_s or node.allocates_bytes or node.view_of is not None:
                raise ValueError(f'wait "{node.name}" must not have a duration or memory of its own')
            if node.waits_for in waits:
                raise ValueError(
                    f'collective "{node.waits_for}" has two waits, '
                    f'"{node.name}" and "{waits[node.waits_for]}"'
                )
            waits[node.waits_for] = node.name
        for node in self.nodes:
            if node.collective is not None and node.name not in waits:
                raise ValueError(
                    f'collective "{node.name}" has no wait: nothing says when its output is needed'
                )

    def _refuse_what_cannot_be_added(self) -> None:
        calls = [node.collective for node in self.nodes if node.collective is not None]
        sent = sum(call.input_bytes + call.output_bytes for call in calls)
        total = self.resident_bytes + sent + sum(node.allocates_bytes for node in self.nodes)
        if total > MAX_TOTAL_BYTES:
            raise ValueError(f"nodes have {total} bytes together, at most {MAX_TOTAL_BYTES} are allowed")
        with np.errstate(all="ignore"):
            seconds = sum(node.duration_s for node in self.nodes) + 4 * sent / self.copy_bytes_per_s
            for each in self.communicators:
                for cost in each.costs:
                    mine = [
                        call.input_bytes
                        for call in calls
                        if (call.communicator, call.op) == (each.name, cost.op)
                    ]
                    seconds += len(mine) * float(cost.curve(each.ranks)(sum(mine)))
        if not seconds <= MAX_TOTAL_S:
            raise ValueError(f"nodes may take {seconds:g} s together, at most {MAX_TOTAL_S:g} s are allowed")

    @cached_property
    def numbers(self) -> dict[str, Index]:
        """The place of each node by its name."""
        return {node.name: number for number, node in enumerate(self.nodes)}

    def bucket_key(self, node: GraphNode) -> BucketKey:
        """Return what collectives have in common that may share a bucket."""
        assert node.collective is not None
        return node.collective.op, node.collective.communicator, node.collective.dtype

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of what is the same on every rank: nodes, what they read, what collectives send."""
        told = hashlib.sha256()
        for node in self.nodes:
            call = "" if node.collective is None else node.collective.model_dump_json()
            told.update(f"{node.name}\0{','.join(node.deps)}\0{call}\n".encode())
        return told.hexdigest()


def is_graph(path: str | Path) -> bool:
    """Return whether a file holds a graph, not a profile; raises OSError. What is no JSON is no graph."""
    try:
        document = json.loads(read_file(path, InvalidGraph))
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("exchange") == "graph" and "nodes" in document


def parse_graph(document: bytes | str) -> CollectiveGraph:
    """Read a graph from JSON; raises InvalidGraph with one line per fault."""
    return parse(CollectiveGraph, document)


def load_graph(path: str | Path) -> CollectiveGraph:
    """Read a graph from a JSON file; raises InvalidGraph and OSError."""
    return load(parse_graph, path, InvalidGraph)
