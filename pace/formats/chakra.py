"""Chakra execution traces of PyTorch training (MLCommons, schema 0.0.4): operators, kernels, collectives.

A Chakra trace is a PyTorch execution trace with exclusive durations from a Kineto trace and with the
kernels as nodes that depend on the operators that launched them. Which operator called which is not
kept; the order of the nodes and autograd's sequence numbers are, and they suffice. Traces that a
generator made up have no operators of PyTorch in them, and are refused by that name.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from pace.documents.collective_costs import AllReduce, SampledAllReduce
from pace.documents.profile import Profile
from pace.errors import FormatError
from pace.formats.execution_trace import TracedTensor, given_bytes, tensors_of
from pace.formats.kineto_records import ACCUMULATE, BACKWARD, COMMUNICATION, short_name
from pace.formats.op_tree import refuse_other_jobs, refuse_repeated_passes
from pace.formats.reading import open_binary, validated, warn
from pace.formats.recorded_collectives import without_waiting
from pace.formats.training_step import StepGradient, StepOp, TrainingStep, profile_of_step

_VERSION = "0.0.4"
_LARGEST_MESSAGE = 1 << 28

# Names, numbers and types of fields; a type with a star is repeated, a capital begins a message.
_SCHEMA = {
    "GlobalMetadata": {"version": (1, "string")},
    "AttributeProto": {
        "name": (1, "string"),
        "int32_val": (7, "int32"),
        "int64_val": (9, "int64"),
        "uint32_val": (11, "uint32"),
        "uint64_val": (13, "uint64"),
        "bool_val": (27, "bool"),
        "string_val": (29, "string"),
    },
    "IOInfo": {"shapes": (2, "string"), "types": (3, "string")},
    "Node": {
        "id": (1, "uint64"),
        "name": (2, "string"),
        "type": (3, "int32"),  # an enumeration, which is written as int32 is
        "ctrl_deps": (4, "uint64*"),
        "data_deps": (5, "uint64*"),
        "duration_micros": (7, "uint64"),
        "inputs": (8, "IOInfo"),
        "attr": (10, "AttributeProto*"),
    },
}


def stream_nodes(path: str | Path) -> Iterator[tuple[int, Any]]:
    """Yield every node's position in bytes and the node; needs protobuf (``pace-scheduler[chakra]``).

    Raises
    ------
    FormatError
        If the file ends within a message, or a message is none of the schema's.
    ModuleNotFoundError
        If protobuf is not installed.
    """
    messages = _message_classes()
    from google.protobuf.message import DecodeError
    from google.protobuf.proto import parse_length_prefixed

    with open_binary(path) as file:
        stream = _Stream(path, file)
        kind = "GlobalMetadata"
        while True:
            stream.start = start = stream.position
            try:
                message = parse_length_prefixed(messages[kind], stream)
                if message is None:
                    return
                parts = (message.inputs, *message.attr) if kind == "Node" else ()
                for part in (message, *parts):
                    _refuse_other_types(part)
            except FormatError:
                raise
            except (DecodeError, ValueError) as error:
                what = "a node of a Chakra trace" if kind == "Node" else "how a Chakra trace begins"
                raise FormatError(path, f"this is not {what}: {error}", f"byte {start}") from None
            if kind == "Node":
                yield start, message
            elif message.version != _VERSION:
                warn(path, f"Chakra schema {message.version!r} is not the one that was tested ({_VERSION})")
            kind = "Node"


class _Stream:
    """The stream that protobuf reads. Knows its position, and refuses lengths that no message has."""

    def __init__(self, path: str | Path, file: IO[bytes]) -> None:
        self._path = path
        self._file = file
        self.position = 0
        self.start = 0

    def read(self, size: int) -> bytes:
        if size > _LARGEST_MESSAGE:
            raise FormatError(
                self._path, f"a message of {size} bytes: not a Chakra trace", f"byte {self.start}"
            )
        data = self._file.read(size)
        self.position += len(data)
        if len(data) < size and self.position > self.start:
            raise FormatError(self._path, "the file ends within a message", f"byte {self.start}")
        return data


def _refuse_other_types(message: Any) -> None:
    # A field of another type than the schema's is unknown to protobuf, and would read as 0.
    from google.protobuf.unknown_fields import UnknownFieldSet

    known = message.DESCRIPTOR.fields_by_number
    for field in UnknownFieldSet(message):
        if field.field_number in known:
            raise ValueError(f"{known[field.field_number].name} is not of the schema's type")


@cache
def _message_classes() -> dict[str, Any]:
    # The classes that MLCommons publishes come with a trace analyser and its notebook server, and refuse a
    # protobuf older than the one that generated them. So the schema's numbers are given to protobuf here, in
    # a pool of their own: nothing clashes where the published classes are loaded too.
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    of = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="chakra.proto", package="chakra", syntax="proto3")
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            element = kind.rstrip("*")
            field = message.field.add(name=field_name, number=number)
            field.label = of.LABEL_REPEATED if kind.endswith("*") else of.LABEL_OPTIONAL
            if element in _SCHEMA:
                field.type, field.type_name = of.TYPE_MESSAGE, f".chakra.{element}"
            else:
                field.type = of.Type.Value(f"TYPE_{element.upper()}")
            if field_name.endswith("_val"):
                field.oneof_index = 0
                if not message.oneof_decl:
                    message.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = ((name, pool.FindMessageTypeByName(f"chakra.{name}")) for name in _SCHEMA)
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found}


_COLLECTIVE, _SEND, _RECEIVE = 7, 5, 6
_ALL_REDUCE = 0
_ANNOTATION_SCOPE = 7
_COPY_BACK = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
_UPDATE = "Optimizer.step#"
_LARGEST_TEXT = 100_000
# Names of PyTorch's operators have a namespace; its profiler's annotations have other marks.
_PYTORCH_MARKS = ("::", "#", "record_param_comms", "[pytorch|")
_GENERATED = (
    "a Chakra trace that a generator made up: its {count} nodes (such as {name!r}) are no operators of "
    "PyTorch, so nothing tells which are gradients. Put the layers' times into a table and run `pace import "
    "layers TABLE.csv --workers N --bandwidth-gbps G`."
)


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
    step = _last_step(path, reader)
    if allreduce is None:
        if not reader.samples:
            raise FormatError(path, "no all-reduce was recorded: give the cost of an all-reduce")
        if len(reader.groups) > 1:
            first, second = sorted(reader.groups)[:2]
            raise FormatError(
                path,
                f"all-reduces of the process groups {first[:60]!r} and {second[:60]!r} were recorded, and "
                "nothing tells which one sums gradients: give the cost of its all-reduces (--cost)",
            )
        sizes = sorted(reader.samples)
        seconds = without_waiting(sizes, [reader.samples[size] for size in sizes])
        with validated(path):
            allreduce = SampledAllReduce(samples=tuple(zip(sizes, seconds, strict=True)), ranks=1)
    return profile_of_step(
        path,
        step,
        name=name,
        workers=workers,
        allreduce=allreduce,
        metadata={"origin": "imported", "tool": "Chakra", "clock": "device" if reader.device else "host"},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """An operator or an annotation; `duration_s` without what it called."""

    id: int
    name: str
    duration_s: float
    scope: int | None
    sequence: int | None
    tensor: TracedTensor | None
    sent_bytes: int

    @property
    def annotation(self) -> bool:
        """Whether it is no operator, but a mark of the user's."""
        return self.scope == _ANNOTATION_SCOPE


class _Reader:
    """The nodes of a file in the order in which they ran, and its all-reduces."""

    def __init__(self, path: str | Path) -> None:
        self.samples: dict[float, float] = {}
        self.groups: set[str] = set()  # of these samples, where the trace names them
        self._nodes: dict[int, _Node] = {}
        self._device: dict[int, float] = {}
        fault: FormatError | None = None
        count, named, of_pytorch = 0, "", False
        for position, node in stream_nodes(path):
            count += 1
            named = named or node.name
            of_pytorch = of_pytorch or any(mark in node.name for mark in _PYTORCH_MARKS)
            try:
                if fault is None:
                    self._take(node)
            except ValueError as error:
                reason = f"this is not a node of a Chakra trace: {error}"
                fault = FormatError(path, reason, f"byte {position}")
        if named and not of_pytorch:
            raise FormatError(path, _GENERATED.format(count=count, name=named[:60]))
        if fault is not None:
            raise fault
        if not self._nodes:
            raise FormatError(path, "no nodes: expected a Chakra trace")
        self.device = bool(self._device)

    @property
    def nodes(self) -> list[_Node]:
        """The nodes by id, with their kernels' durations if the trace has any kernels."""
        nodes = [self._nodes[identity] for identity in sorted(self._nodes)]
        if not self.device:
            return nodes
        return [replace(node, duration_s=self._device.get(node.id, 0.0)) for node in nodes]

    def _take(self, node: Any) -> None:
        attributes = {attribute.name: _value(attribute) for attribute in node.attr}
        duration_s = node.duration_micros * 1e-6
        if node.type in (_COLLECTIVE, _SEND, _RECEIVE):
            size = attributes.get("comm_size") or 0
            if size < 0:
                raise ValueError(f"a collective of {size} bytes")
            if (
                node.type == _COLLECTIVE
                and attributes.get("comm_type") == _ALL_REDUCE
                and size
                and duration_s
            ):
                self.samples[float(size)] = min(self.samples.get(float(size), duration_s), duration_s)
                named = (each.string_val for each in node.attr if each.name == "pg_name")
                self.groups.update(name for name in named if name)
        elif attributes.get("is_cpu_op", True):
            if node.id in self._nodes:
                raise ValueError(f"two nodes have the id {node.id}")
            sequence = attributes.get("seq_id")
            shapes, types = _literal(node.inputs.shapes), _literal(node.inputs.types)
            tensors = tensors_of(shapes, types)
            self._nodes[node.id] = _Node(
                id=node.id,
                name=node.name,
                duration_s=duration_s,
                scope=attributes.get("scope"),
                sequence=sequence if sequence is not None and sequence >= 0 else None,
                tensor=tensors[0] if tensors else None,
                sent_bytes=given_bytes(shapes, types),
            )
        else:
            # A kernel depends on its operator and perhaps on earlier kernels: the operator came last.
            deps = (*node.data_deps, *node.ctrl_deps)
            launched_by = max((dep for dep in deps if dep in self._nodes), default=None)
            if launched_by is None:
                raise ValueError(f"the kernel with id {node.id} depends on no operator")
            self._device[launched_by] = self._device.get(launched_by, 0.0) + duration_s


def _last_step(path: str | Path, reader: _Reader) -> TrainingStep:
    nodes = reader.nodes
    starts = [place for place, node in enumerate(nodes) if node.name.startswith("ProfilerStep#")]
    edges = [*(starts or [0]), len(nodes)]
    for start, end in reversed(list(pairwise(edges))):
        inside = nodes[start:end]
        first = next((place for place, node in enumerate(inside) if node.name.startswith(BACKWARD)), 0)
        if first:
            return _step(path, inside[:first], inside[first:])
    raise FormatError(path, "no step with a forward and a backward pass was found")


def _step(path: str | Path, before: list[_Node], after: list[_Node]) -> TrainingStep:
    forward: list[StepOp] = []
    consumer: dict[int, int] = {}
    after_unflatten = False
    for node in before:
        copies_buffers = after_unflatten and node.name == "aten::copy_"
        after_unflatten = node.name == "aten::unflatten_dense_tensors" or copies_buffers
        if node.annotation or copies_buffers or COMMUNICATION.match(node.name):
            continue
        if node.sequence is not None:
            consumer[node.sequence] = len(forward)
        forward.append(StepOp(name=f"{len(forward):03d}.{short_name(node.name)}", duration_s=node.duration_s))
    backward: list[tuple[str, float, int | None]] = []
    gradients: list[tuple[TracedTensor, int]] = []
    update_s = 0.0
    finished = False
    for node in after:
        communicates = COMMUNICATION.match(node.name) is not None
        finished = finished or node.name.startswith((_COPY_BACK, _UPDATE))
        if node.name.startswith(BACKWARD) and node.name != BACKWARD + ACCUMULATE:
            backward.append((short_name(node.name), node.duration_s, node.sequence))
        elif node.annotation or communicates:
            continue
        elif finished:
            update_s += node.duration_s
        else:
            if not backward:
                raise FormatError(path, f"a gradient is accumulated at id {node.id} before any backward op")
            name, duration, sequence = backward[-1]
            known = node.sequence if sequence is None else sequence
            backward[-1] = (name, duration + node.duration_s, known)
            if node.name == ACCUMULATE:
                if node.tensor is None:
                    raise FormatError(path, f"the gradient accumulated at id {node.id} has no shape")
                gradients.append((node.tensor, len(backward) - 1))
    ran = [[(node.name, node.sent_bytes) for node in part] for part in (before, after)]
    refuse_other_jobs(path, ran[0], ran[1], len(gradients))
    refuse_repeated_passes(
        path,
        ((node.name, node.scope, node.sequence) for node in after),
        [tensor for tensor, _ in gradients],
    )
    unjoined = sum(backward[place][2] not in consumer for _, place in gradients)
    if unjoined:
        warn(path, f"{unjoined} gradients have no forward op: they are taken to be needed by the first one")
    return TrainingStep(
        forward=tuple(forward),
        backward=tuple(
            StepOp(name=f"{place:03d}.{name}", duration_s=duration)
            for place, (name, duration, _) in enumerate(backward)
        ),
        gradients=tuple(
            StepGradient(
                size_bytes=tensor.size_bytes,
                dtype=tensor.dtype,
                producer=place,
                consumer=consumer.get(_number(backward[place][2]), 0),
            )
            for tensor, place in gradients
        ),
        update_s=update_s,
    )


def _number(sequence: int | None) -> int:
    return -1 if sequence is None else sequence


def _value(attribute: Any) -> int | bool | None:
    """Return the number of an attribute; None if it is of another type."""
    kind = attribute.WhichOneof("value")
    value: int | bool | None = None if kind in (None, "string_val") else getattr(attribute, kind)
    return value


def _literal(text: str) -> list[Any]:
    """Return shapes or types, which are written as Python's lists are printed."""
    if not text or len(text) > _LARGEST_TEXT:
        return []
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ValueError(f"not a list: {text[:60]!r}") from None
    return value if isinstance(value, list) else []
