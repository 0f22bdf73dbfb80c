"""A server's share of a plan: its segments, their chunks, and what the server does with them."""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import torch

from pace.wire.frames import (
    CHUNK_BYTES,
    LARGEST_PAYLOAD_BYTES,
    LONGEST_RUN_BYTES,
    Frame,
    FrameKind,
    WireFault,
)
from pace_servers.runtime.arithmetic import ITEM_BYTES

_MOST_SEGMENTS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSegment:
    """What a server knows of a segment."""

    size_bytes: int
    dtype: str
    turn: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A server's share of a plan; equal on all ranks.

    Attributes
    ----------
    purpose
        "sum": the server adds the gradients of all ranks and returns the sums. "weights": the server holds
        weights, adds what workers push, and returns the result.
    staleness
        For weights: how many clocks a worker may be ahead of the slowest one; None for any number.
    deterministic
        Whether sums are added in the order of ranks, not in the order of arrival.
    pace_bytes_per_s
        The rate at which the server sends to each worker; None for the rate in the worker's greeting.
    seeder
        The rank that sends the first weights.
    """

    segments: tuple[ServedSegment, ...]
    purpose: Literal["sum", "weights"] = "sum"
    staleness: int | None = None
    deterministic: bool = False
    pace_bytes_per_s: float | None = None
    seeder: int = 0
    chunk_bytes: int = CHUNK_BYTES

    @cached_property
    def document(self) -> bytes:
        """The layout as bytes, to send and to hash."""
        fields = asdict(self) | {"segments": [[s.size_bytes, s.dtype, s.turn] for s in self.segments]}
        return json.dumps(fields, sort_keys=True).encode()

    @cached_property
    def sha256(self) -> bytes:
        """The hash of the document."""
        return hashlib.sha256(self.document).digest()

    @property
    def size_bytes(self) -> int:
        """The bytes of all segments."""
        return sum(segment.size_bytes for segment in self.segments)

    def chunks(self, segment: int) -> Iterator[tuple[int, int]]:
        """Yield offset and length of a segment's chunks."""
        size = self.segments[segment].size_bytes
        for offset in range(0, size, self.chunk_bytes):
            yield offset, min(self.chunk_bytes, size - offset)

    def num_chunks(self, segment: int) -> int:
        """Return the number of a segment's chunks."""
        return -(-self.segments[segment].size_bytes // self.chunk_bytes)

    @cached_property
    def longest_run_bytes(self) -> int:
        """The most bytes of neighboring chunks in one frame."""
        return max(LONGEST_RUN_BYTES // self.chunk_bytes, 1) * self.chunk_bytes

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(segment.size_bytes for segment in self.segments)

    def check(self, frame: Frame) -> range:
        """Return the numbers of the chunks that a frame carries.

        Raises
        ------
        WireFault
            If there are no such chunks, or too many for one frame.
        """
        sizes, chunk = self._sizes, self.chunk_bytes
        if frame.segment >= len(sizes):
            raise WireFault(f"segment {frame.segment} of {len(sizes)}")
        size = sizes[frame.segment]
        end = frame.offset + frame.length
        whole = frame.offset % chunk == 0 and (end == size or (end < size and end % chunk == 0))
        if not whole or not 0 < frame.length <= self.longest_run_bytes:
            raise WireFault(
                f"{frame.length} bytes from {frame.offset} on are no chunks of segment {frame.segment},"
                f" which has {size} bytes"
            )
        return range(frame.offset // chunk, -(-end // chunk))


def read_layout(document: bytes | bytearray, *, most_bytes: int) -> Layout:
    """Read a layout from a worker.

    Raises
    ------
    WireFault
        If the layout is invalid, or needs more than `most_bytes` on this server.
    """
    try:
        fields: Any = json.loads(document)
        segments = tuple(
            ServedSegment(size_bytes=size, dtype=dtype, turn=turn)
            for size, dtype, turn in fields.pop("segments")
        )
        layout = Layout(segments=segments, **fields)
        faults = list(_faults(layout))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise WireFault("a layout that cannot be read") from None
    if faults:
        raise WireFault(f"a layout with {faults[0]}")
    if layout.size_bytes > most_bytes:
        raise WireFault(
            f"a layout of {layout.size_bytes:,} bytes, of which this server holds at most {most_bytes:,}"
        )
    return layout


def _faults(layout: Layout) -> Iterator[str]:
    if len(layout.segments) > _MOST_SEGMENTS:
        yield f"{len(layout.segments)} segments"
    if layout.purpose not in ("sum", "weights") or type(layout.deterministic) is not bool:
        yield f"an unknown purpose, {layout.purpose!r}"
    if not _is_count(layout.seeder, 0, 1 << 16):
        yield f"a seeder {layout.seeder!r}"
    if layout.staleness is not None and not _is_count(layout.staleness, 0, 1 << 31):
        yield f"a staleness of {layout.staleness!r}"
    pace = layout.pace_bytes_per_s
    if pace is not None and not (type(pace) in (int, float) and 0 < pace < math.inf):
        yield f"a pace of {pace!r}"
    if not _is_count(layout.chunk_bytes, 8, LARGEST_PAYLOAD_BYTES[FrameKind.PUSH]) or layout.chunk_bytes % 8:
        yield f"chunks of {layout.chunk_bytes!r} bytes"
    for segment in layout.segments:
        if segment.dtype not in ITEM_BYTES or not _is_count(segment.turn, 0, 1 << 32):
            yield f"a segment of dtype {segment.dtype!r} and turn {segment.turn!r}"
        elif not _is_count(segment.size_bytes, 1, 1 << 48) or segment.size_bytes % ITEM_BYTES[segment.dtype]:
            yield f"a segment of {segment.size_bytes!r} bytes"


def _is_count(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value < most + 1


def segment_of(tensor: torch.Tensor, turn: int) -> ServedSegment:
    """Describe a tensor to its server."""
    return ServedSegment(
        size_bytes=tensor.numel() * tensor.element_size(),
        dtype=str(tensor.dtype).removeprefix("torch."),
        turn=turn,
    )


def bits_of(chunks: range) -> int:
    """Return a number in which the bits of these chunks are set."""
    return ((1 << len(chunks)) - 1) << chunks.start


def memory_of(tensor: torch.Tensor) -> memoryview:
    """Return a contiguous tensor's memory as bytes."""
    array: Any = tensor.detach().view(-1).view(torch.uint8).numpy()
    return memoryview(array)
