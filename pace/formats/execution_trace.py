"""PyTorch execution traces (ExecutionTraceObserver): every operator with its tensors, and no times.

Schemas 1.0.1 to 1.1.1 are read. The sizes of gradients join a Kineto trace; ``pace.formats.shaped_steps``
makes a profile from an execution trace alone.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pace.documents.profile import ELEMENT_BYTES, DType
from pace.errors import FormatError
from pace.formats.reading import read_json_before, stream_json, warn, whole_or_none
from pace.formats.tensor_types import DTYPES, elements_of

_ACCUMULATE = "torch::autograd::AccumulateGrad"
_STEP = "ProfilerStep#"
_UNDEFINED = "Tensor(nullptr (uninitialized))"
_REDUCES = ("nccl:all_reduce", "gloo:all_reduce")
_TENSOR = re.compile(r"Tensor\([\w:]+\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedTensor:
    """A tensor's size and element type."""

    size_bytes: int
    dtype: DType


@dataclass(slots=True)
class TracedOp:
    """A node: an operator, an annotation or a thread's root.

    Attributes
    ----------
    undefined
        Whether its first input is no tensor, as the gradient of a parameter that a fused kernel updates.
    sent_bytes
        What it is given, in lists as well, if all nodes are kept.
    """

    id: int
    parent: int
    name: str
    record: int | None
    sequence: int | None
    scope: int | None
    inputs: list[TracedTensor]
    outputs: list[TracedTensor]
    shapes: list[tuple[int, ...]]
    undefined: bool = False
    sent_bytes: int = 0


@dataclass(slots=True)
class ExecutionTrace:
    """One rank's trace: the nodes in the order in which they ran."""

    path: str
    ops: list[TracedOp] = field(default_factory=list)
    gradients: list[tuple[int | None, TracedTensor]] = field(default_factory=list)
    allreduces: dict[int, TracedTensor] = field(default_factory=dict)
    steps: int = 0

    def gradients_like(self, records: Sequence[int | None]) -> list[TracedTensor]:
        """Return the gradients of one step of a Kineto trace.

        By record function id, if the trace has every one of them as an accumulation of a gradient,
        which means that both were recorded together; else by their order in a step.

        Raises
        ------
        FormatError
            If the number of gradients differs, or their sizes do from step to step.
        """
        by_record = {record: tensor for record, tensor in self.gradients if record is not None}
        found = [by_record.get(record) for record in records if record is not None]
        together = [tensor for tensor in found if tensor is not None]
        if len(together) == len(records):
            return together
        count = len(records)
        if not count or len(self.gradients) % count:
            raise FormatError(
                self.path,
                f"{len(self.gradients)} gradients in {self.steps or 'unknown'} steps; the Kineto trace has "
                f"{count} a step: not the same workload",
            )
        tensors = [tensor for _, tensor in self.gradients]
        first = tensors[:count]
        if any(tensors[start : start + count] != first for start in range(0, len(tensors), count)):
            raise FormatError(self.path, "gradients have other sizes in another step: they cannot be joined")
        return first


def read_execution_trace(path: str | Path, *, keep_ops: bool = False) -> ExecutionTrace:
    """Stream an execution trace; all its nodes are kept only with `keep_ops`.

    Raises
    ------
    FormatError
        With the node at fault.
    """
    schema = read_json_before(path, "nodes").get("schema")
    if not isinstance(schema, str) or not schema.startswith(("1.0.", "1.1.")):
        warn(path, f"execution trace schema {schema!r} is not one that was tested (1.0.1 to 1.1.1)")
    trace = ExecutionTrace(path=str(path))
    empty = True
    for place, node in enumerate(stream_json(path, "nodes.item")):
        empty = False
        if not isinstance(node, dict):
            raise FormatError(path, "expected an object", f"nodes[{place}]")
        op = _op(path, node, f"nodes[{place}]", shapes=keep_ops)
        if op.name == _ACCUMULATE and not op.undefined:
            if not op.inputs:
                raise FormatError(path, "a gradient is accumulated that has no shape", f"nodes[{place}]")
            trace.gradients.append((op.record, op.inputs[0]))
        elif op.name in _REDUCES and op.inputs and op.record is not None:
            trace.allreduces[op.record] = op.inputs[0]
        elif op.name.startswith(_STEP):
            trace.steps += 1
        if keep_ops:
            trace.ops.append(op)
    if empty:
        raise FormatError(path, 'no "nodes": expected a PyTorch execution trace')
    return trace


def _op(path: str | Path, node: dict[str, Any], position: str, *, shapes: bool) -> TracedOp:
    name, identity = node.get("name"), node.get("id")
    if not isinstance(name, str) or not isinstance(identity, int):
        raise FormatError(path, "a node needs a name and an id", position)
    attributes = _attributes(node)
    parent = node.get("ctrl_deps", node.get("parent"))
    wanted = shapes or name == _ACCUMULATE or name in _REDUCES
    return TracedOp(
        id=identity,
        parent=parent if isinstance(parent, int) else 0,
        name=name,
        record=whole_or_none(attributes.get("rf_id")),
        sequence=whole_or_none(attributes.get("seq_id")),
        scope=whole_or_none(attributes.get("scope")),
        inputs=_tensors(node, "input") if wanted else [],
        outputs=_tensors(node, "output") if wanted else [],
        shapes=_shapes(node) if shapes else [],
        undefined=_values(node, "input", "types")[:1] == [_UNDEFINED],
        sent_bytes=given_bytes(_values(node, "input", "shapes"), _values(node, "input", "types"))
        if shapes
        else 0,
    )


def _attributes(node: dict[str, Any]) -> dict[str, Any]:
    attributes = node.get("attrs")
    if not isinstance(attributes, list):
        return node  # schema 1.0.x has them beside the name
    return {
        str(attribute.get("name")): attribute.get("value")
        for attribute in attributes
        if isinstance(attribute, dict)
    }


def _values(node: dict[str, Any], side: str, what: str) -> list[Any]:
    grouped = node.get(f"{side}s")
    values = grouped.get(what) if isinstance(grouped, dict) else node.get(f"{side}_{what}")
    return values if isinstance(values, list) else []


def _tensors(node: dict[str, Any], side: str) -> list[TracedTensor]:
    return tensors_of(_values(node, side, "shapes"), _values(node, side, "types"))


def tensors_of(shapes: Sequence[Any], types: Sequence[Any]) -> list[TracedTensor]:
    """Return the tensors among recorded values; lists of tensors and plain values are left out."""
    tensors = []
    for shape, kind in zip(shapes, types, strict=False):
        dtype = _dtype(kind)
        elements = elements_of(shape)
        if dtype is not None and elements is not None:
            tensors.append(TracedTensor(size_bytes=elements * ELEMENT_BYTES[dtype], dtype=dtype))
    return tensors


def given_bytes(shapes: Sequence[Any], types: Sequence[Any]) -> int:
    """Return the bytes of all tensors among recorded values; collectives are given them in lists."""
    total = sum(tensor.size_bytes for tensor in tensors_of(shapes, types))
    for shape, kind in zip(shapes, types, strict=False):
        if isinstance(shape, list) and isinstance(kind, str) and kind.startswith("GenericList["):
            total += sum(tensor.size_bytes for tensor in tensors_of(shape, _TENSOR.findall(kind)))
    return total


def _shapes(node: dict[str, Any]) -> list[tuple[int, ...]]:
    shapes = []
    for shape, kind in zip(_values(node, "input", "shapes"), _values(node, "input", "types"), strict=False):
        if _dtype(kind) is not None and elements_of(shape) is not None:
            shapes.append(tuple(shape))
    return shapes


def _dtype(kind: object) -> DType | None:
    if not isinstance(kind, str) or not kind.startswith("Tensor("):
        return None
    return DTYPES.get(kind[len("Tensor(") : -1].lower())
