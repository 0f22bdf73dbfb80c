"""Frames between two processes, one of which is not trusted: lengths, JSON, and a document."""

import json
import struct
from typing import IO, Any

_HEAD = struct.Struct(">II")


def write_frame(stream: IO[bytes], told: dict[str, Any], document: bytes = b"") -> None:
    """Send a frame; the caller must prevent other threads from sending at the same time."""
    line = json.dumps(told).encode()
    stream.write(_HEAD.pack(len(line), len(document)) + line + document)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], bytes]:
    """Receive a frame; raises EOFError at the end, and ValueError for invalid data."""
    num_line, num_document = _HEAD.unpack(_exactly(stream, _HEAD.size))
    told = json.loads(_exactly(stream, num_line))
    if not isinstance(told, dict):
        raise ValueError("a frame's first line is no object")
    return told, _exactly(stream, num_document)


def _exactly(stream: IO[bytes], num_bytes: int) -> bytes:
    content = stream.read(num_bytes)
    if len(content) < num_bytes:
        raise EOFError
    return content
