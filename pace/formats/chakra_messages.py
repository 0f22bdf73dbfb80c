"""A Chakra file as messages, decoded by Google's protobuf: schema 0.0.4, as far as an importer reads it.

The classes that MLCommons publishes come with a trace analyser and its notebook server, and refuse a
protobuf older than the one that generated them. So the schema's numbers are given to protobuf here, in a
pool of their own: nothing clashes where the published classes are loaded too.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any

from pace.errors import FormatError
from pace.formats.reading import open_binary, warn

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
