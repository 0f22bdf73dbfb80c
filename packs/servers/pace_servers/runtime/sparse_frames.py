"""Frames of chunks that are zero except for runs of elements, such as rows of an embedding's gradient.

A frame stands for whole chunks from its offset on. Its payload is: the number of chunks, the number of runs,
and the common length of all runs or 0 if lengths differ (three u32 in network order); the start of each run,
in elements from the frame's offset (u32); if lengths differ, the lengths (u32); and the elements of all runs.
All but the first three numbers are little-endian.
"""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pace.runtime.transports.runs import Runs
from pace.wire.frames import Frame, FrameKind, WireFault
from pace.wire.outbox import Parcel
from pace_servers.runtime.arithmetic import HALVES, ITEM_BYTES
from pace_servers.runtime.layout import Layout

_HEAD = struct.Struct("!III")
_INDEX = np.dtype("<u4")

# With this limit, places within a frame fit into a u32.
_MOST_STRETCH_BYTES = 1 << 31


class SparseChunks(NamedTuple):
    """The contents of a frame: its chunks, and the runs in them, in elements of the segment."""

    chunks: range
    runs: Runs
    values: Any

    def cut(self, first: int, last: int) -> tuple[Runs, Any]:
        """Return the runs between elements `first` and `last`, and their values."""
        before = self.runs.cut(0, first).num_elements
        runs = self.runs.cut(first, last).shifted(first)
        return runs, self.values[before : before + runs.num_elements]


class SparseParcel(Parcel):
    """A range of memory of which only runs are sent; all other elements are zero.

    Parameters
    ----------
    first
        The first frame, of kind PUSH or PULL, with an offset of whole chunks.
    runs
        The runs, in elements of the memory.
    """

    __slots__ = ("_array", "_cumulative", "_item_bytes", "_runs")

    def __init__(
        self,
        first: Frame,
        memory: memoryview,
        dtype: str,
        runs: Runs,
        chunk_bytes: int,
        longest_run_bytes: int,
        on_left: Callable[[], None] | None = None,
    ) -> None:
        kind = FrameKind.PUSH_RUNS if first.kind is FrameKind.PUSH else FrameKind.PULL_RUNS
        super().__init__(first._replace(kind=kind), memory, chunk_bytes, longest_run_bytes, on_left)
        self._array: Any = np.frombuffer(memory, dtype=dtype)
        self._item_bytes = ITEM_BYTES[dtype]
        self._runs = runs
        self._cumulative = np.cumsum(runs.lengths * self._item_bytes + 2 * _INDEX.itemsize)

    def next(self, run_bytes: float) -> tuple[Frame, memoryview]:
        """Take the next chunks: at least one, and more while the bytes to send stay below `run_bytes`."""
        start, item = self.position, self._item_bytes
        limit = min(max(run_bytes, self._chunk_bytes), self._longest_run_bytes) - _HEAD.size
        stop = self._stop(start, int(limit))
        runs = self._runs.cut(start // item, stop // item)
        places = runs.places + start // item
        alike = int(runs.lengths[0]) if len(runs.lengths) and not np.ptp(runs.lengths) else 0
        parts = [
            _HEAD.pack(-(-(stop - start) // self._chunk_bytes), len(runs.starts), alike),
            runs.starts.astype(_INDEX).tobytes(),
            b"" if alike else runs.lengths.astype(_INDEX).tobytes(),
            self._array[places].tobytes(),
        ]
        payload = memoryview(b"".join(parts))
        self.position = stop
        self.left -= stop - start
        offset = self._first.offset + start
        return self._first._replace(offset=offset, length=len(payload)), payload

    def _stop(self, start: int, limit: int) -> int:
        """Return the end of the chunks, at least one, whose runs have at most `limit` bytes."""
        end, item = self.position + self.left, self._item_bytes
        first = int(np.searchsorted(self._runs.ends, start // item, side="right"))
        sent = int(self._cumulative[first - 1]) if first else 0
        fitting = int(np.searchsorted(self._cumulative, sent + limit, side="right"))
        if fitting < len(self._runs.starts):
            chunk = int(self._runs.starts[fitting]) * item // self._chunk_bytes
            end = min(end, max(chunk * self._chunk_bytes, start + self._chunk_bytes))
        most = max(_MOST_STRETCH_BYTES // self._chunk_bytes, 1) * self._chunk_bytes
        return min(end, start + most)


def is_worth_it(runs: Runs, size_bytes: int, dtype: str) -> bool:
    """Return whether sending runs takes less than half of the bytes of sending everything."""
    if dtype in HALVES:
        return False
    sent = runs.num_elements * ITEM_BYTES[dtype] + 2 * _INDEX.itemsize * len(runs.starts)
    return 2 * sent < size_bytes


def parcel_of(
    first: Frame,
    memory: memoryview,
    runs: Runs | None,
    layout: Layout,
    on_left: Callable[[], None] | None = None,
) -> Parcel:
    """Return a parcel of a range of a segment, with runs if that saves bytes."""
    dtype = layout.segments[first.segment].dtype
    if runs is None or not is_worth_it(runs, len(memory), dtype):
        return Parcel(first, memory, layout.chunk_bytes, layout.longest_run_bytes, on_left)
    return SparseParcel(first, memory, dtype, runs, layout.chunk_bytes, layout.longest_run_bytes, on_left)


def read_runs(frame: Frame, payload: memoryview, layout: Layout) -> SparseChunks:
    """Read a payload.

    Raises
    ------
    WireFault
        If it is invalid, or for chunks that the segment does not have.
    """
    if frame.segment >= len(layout.segments):
        raise WireFault(f"segment {frame.segment} of {len(layout.segments)}")
    segment, chunk = layout.segments[frame.segment], layout.chunk_bytes
    if segment.dtype in HALVES or len(payload) < _HEAD.size:
        raise WireFault(f"runs of {len(payload)} bytes of segment {frame.segment}, of {segment.dtype}")
    num_chunks, num_runs, alike = _HEAD.unpack_from(payload)
    first = frame.offset // chunk
    if frame.offset % chunk or not 0 < num_chunks <= layout.num_chunks(frame.segment) - first:
        raise WireFault(f"{num_chunks} chunks from {frame.offset} on are none of segment {frame.segment}")
    item = ITEM_BYTES[segment.dtype]
    values_at = _HEAD.size + num_runs * _INDEX.itemsize * (1 if alike else 2)
    if values_at > len(payload) or (len(payload) - values_at) % item:
        raise WireFault(f"{num_runs} runs in {len(payload)} bytes")
    starts = np.frombuffer(payload, _INDEX, num_runs, _HEAD.size).astype(np.int64)
    lengths = np.full(num_runs, alike, dtype=np.int64)
    if not alike:
        at = _HEAD.size + num_runs * _INDEX.itemsize
        lengths = np.frombuffer(payload, _INDEX, num_runs, at).astype(np.int64)
    values: Any = np.frombuffer(payload, segment.dtype, offset=values_at)
    runs = Runs(starts, lengths)
    ends, stretch = runs.ends, min(num_chunks * chunk, segment.size_bytes - frame.offset) // item
    apart = not num_runs or (lengths.min() > 0 and ends[-1] <= stretch and not np.any(starts[1:] < ends[:-1]))
    if not apart or runs.num_elements != len(values):
        raise WireFault(f"{num_runs} runs that overlap or leave the chunks of segment {frame.segment}")
    return SparseChunks(range(first, first + num_chunks), runs.shifted(frame.offset // item), values)
