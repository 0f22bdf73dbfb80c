"""Protocol buffers' wire format: as much of it as reading a delimited stream of small messages takes.

The packages that could do it bring a notebook server along, or pin the version of the protobuf runtime.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pace.errors import FormatError
from pace.formats.reading import open_binary

Value = int | float | bytes
Message = dict[int, list[Value]]

_LARGEST_MESSAGE = 1 << 28
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def stream_messages(path: str | Path) -> Iterator[tuple[int, bytes]]:
    """Yield the position and the bytes of every message of a file; each stands behind its length.

    Raises
    ------
    FormatError
        If the file ends within a message or a length cannot be one.
    """
    with open_binary(path) as file:
        position = 0
        while True:
            start = position
            length, position = _length(path, file, position)
            if length is None:
                return
            if length > _LARGEST_MESSAGE:
                raise FormatError(path, f"a message of {length} bytes: not a Chakra trace", f"byte {start}")
            content = file.read(length)
            if len(content) < length:
                raise FormatError(path, f"the file ends within a message of {length} bytes", f"byte {start}")
            position += length
            yield start, content


def _length(path: str | Path, file: IO[bytes], position: int) -> tuple[int | None, int]:
    start, value, shift = position, 0, 0
    while True:
        byte = file.read(1)
        if not byte:
            if position == start:
                return None, position
            raise FormatError(path, "the file ends within a length", f"byte {start}")
        position += 1
        value |= (byte[0] & 0x7F) << shift
        if not byte[0] & 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise FormatError(path, "not a length: more than ten bytes", f"byte {start}")


def parse_message(content: bytes) -> Message:
    """Return the values of every field by number, in order; raises ValueError if it is no message."""
    fields: Message = {}
    position = 0
    while position < len(content):
        tag, position = _varint(content, position)
        number, kind = tag >> 3, tag & 7
        value: Value
        if kind == _VARINT:
            value, position = _varint(content, position)
        elif kind == _BYTES:
            length, position = _varint(content, position)
            value, position = _cut(content, position, length)
        elif kind == _FIXED64:
            raw, position = _cut(content, position, 8)
            value = float(struct.unpack("<d", raw)[0])
        elif kind == _FIXED32:
            raw, position = _cut(content, position, 4)
            value = float(struct.unpack("<f", raw)[0])
        else:
            raise ValueError(f"unknown wire type {kind}")
        if not number:
            raise ValueError("a field has the number 0")
        fields.setdefault(number, []).append(value)
    return fields


def _cut(content: bytes, position: int, length: int) -> tuple[bytes, int]:
    if position + length > len(content):
        raise ValueError("a field is longer than its message")
    return content[position : position + length], position + length


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(content) and shift <= 63:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value & (2**64 - 1), position
        shift += 7
    raise ValueError("a number does not end")


def unpacked(values: list[Value]) -> list[int]:
    """Return the integers of a repeated field, written one by one or packed into one value."""
    numbers = []
    for value in values:
        if isinstance(value, int):
            numbers.append(value)
        elif isinstance(value, bytes):
            position = 0
            while position < len(value):
                number, position = _varint(value, position)
                numbers.append(number)
        else:
            raise ValueError("not a list of integers")
    return numbers


def signed(value: int) -> int:
    """Return what a negative int64 was before it was written as an unsigned varint."""
    return value - 2**64 if value >= 2**63 else value
