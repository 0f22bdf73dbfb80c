"""Chakra execution traces of PyTorch training (MLCommons, schema 0.0.4): operators, kernels, collectives.

A Chakra trace is a PyTorch execution trace with durations from a Kineto trace and with the kernels as
nodes below the operators that launched them. Traces that a generator made up have no operators of
PyTorch in them and cannot be read as a training step.
"""

import ast
from pathlib import Path
from typing import Any

from pace.allreduce import AllReduce, SampledAllReduce
from pace.errors import FormatError
from pace.formats.execution_trace import TracedOp, tensors_of
from pace.formats.kineto_steps import COMMUNICATION
from pace.formats.op_tree import MAX_DEPTH, OpTree, last_step
from pace.formats.training_step import profile_of_step
from pace.formats.wire import Message, parse_message, signed, stream_messages
from pace.profile import Profile

_COLLECTIVE, _SEND, _RECEIVE = 7, 5, 6
_ALL_REDUCE = 0
_LARGEST_TEXT = 100_000


def read_chakra(
    path: str | Path, *, workers: int, allreduce: AllReduce | None = None, name: str | None = None
) -> Profile:
    """Make a profile from a Chakra trace of one rank.

    Parameters
    ----------
    workers
        How many workers took part, which the trace does not say.
    allreduce
        The cost of an all-reduce; by default the shortest recorded duration of each size.

    Raises
    ------
    FormatError
        If the file is no Chakra trace, or has no training step of PyTorch in it.
    """
    reader = _Reader(path)
    tree = OpTree(path, reader.ops)
    step = last_step(tree, lambda op: reader.duration_s(tree, op))
    if allreduce is None:
        if not reader.samples:
            raise FormatError(path, "no all-reduce was recorded: give the cost of an all-reduce")
        allreduce = SampledAllReduce(samples=tuple(sorted(reader.samples.items())))
    return profile_of_step(
        path,
        step,
        name=name,
        workers=workers,
        allreduce=allreduce,
        metadata={"origin": "imported", "tool": "Chakra", "clock": "device" if reader.device else "host"},
    )


class _Reader:
    """The nodes of a file as operators, and what is known of each beside."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.ops: list[TracedOp] = []
        self.samples: dict[float, float] = {}
        self.device: dict[int, float] = {}
        self.host: dict[int, float] = {}
        messages = stream_messages(path)
        next(messages, None)  # the first message describes the file
        for position, content in messages:
            try:
                self._take(parse_message(content))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise FormatError(path, f"not a Chakra node: {error}", f"byte {position}") from None
        if not self.ops:
            raise FormatError(path, "no nodes: expected a Chakra trace")

    def _take(self, node: Message) -> None:
        identity, kind = _int(node, 1), _int(node, 3)
        attributes = dict(_attribute(parse_message(_bytes(part))) for part in node.get(10, []))
        duration = _int(node, 7) * 1e-6
        if kind in (_COLLECTIVE, _SEND, _RECEIVE):
            size = attributes.get("comm_size")
            if kind == _COLLECTIVE and attributes.get("comm_type") == _ALL_REDUCE and size and duration:
                self.samples[float(size)] = min(self.samples.get(float(size), duration), duration)
            return
        (self.host if attributes.get("is_cpu_op", True) else self.device)[identity] = duration
        sequence = attributes.get("seq_id", -1)
        self.ops.append(
            TracedOp(
                id=identity,
                parent=_int(node, 4) if node.get(4) else 0,
                name=_text(node, 2),
                record=None,
                sequence=sequence if isinstance(sequence, int) and sequence >= 0 else None,
                scope=attributes.get("scope"),
                inputs=tensors_of(*_recorded(node, 8)),
                outputs=[],
                shapes=[],
            )
        )

    def duration_s(self, tree: OpTree, op: TracedOp, depth: int = 0) -> float:
        """Time of an op and what it called: of its kernels if the trace has any, else of the host."""
        if depth > MAX_DEPTH:
            raise FormatError(self.path, f"nodes call one another in a cycle or too deep at id {op.id}")
        if COMMUNICATION.match(op.name):
            return 0.0
        own = (self.device or self.host).get(op.id, 0.0)
        return own + sum(self.duration_s(tree, child, depth + 1) for child in tree.below(op))


def _attribute(fields: Message) -> tuple[str, Any]:
    name = _text(fields, 1)
    for number in (9, 7):  # int64, int32
        if number in fields:
            return name, signed(_int(fields, number))
    for number in (13, 11):  # uint64, uint32
        if number in fields:
            return name, _int(fields, number)
    if 27 in fields:
        return name, bool(_int(fields, 27))
    return name, None


def _recorded(node: Message, side: int) -> tuple[list[Any], list[Any]]:
    """Return shapes and types, which are written as Python's lists are printed."""
    if side not in node:
        return [], []
    described = parse_message(_bytes(node[side][0]))
    shapes, types = (_literal(_text(described, number)) for number in (2, 3))
    return shapes, types


def _literal(text: str) -> list[Any]:
    if not text or len(text) > _LARGEST_TEXT:
        return []
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ValueError(f"not a list: {text[:60]!r}") from None
    return value if isinstance(value, list) else []


def _int(fields: Message, number: int) -> int:
    value = fields.get(number, [0])[0]
    if not isinstance(value, int):
        raise ValueError(f"field {number} is no integer")
    return value


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a message was expected")
    return value


def _text(fields: Message, number: int) -> str:
    value = fields.get(number, [b""])[0]
    return _bytes(value).decode("utf-8", errors="replace")
