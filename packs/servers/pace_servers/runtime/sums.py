"""A server's sums: every worker's chunk is added once in a round, and the result is kept until all have it.

Two results are kept for each segment, for odd and even rounds. This is enough: a worker pushes round r + 2
only after it has the sum of round r + 1. Every worker contributed to that sum, and did so after it had the
sum of round r.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from pace.runtime.transports.runs import Runs
from pace.wire.frames import Frame, FrameKind, WireFault
from pace_servers.runtime.arithmetic import ITEM_BYTES, Flat
from pace_servers.runtime.layout import Layout
from pace_servers.runtime.sparse_frames import SparseChunks

# Used instead of a count while the first contribution is being received, directly into the sum.
_COMING = -1


class Reply(NamedTuple):
    """A range of memory to send to a worker; it does not change before the worker has it.

    Attributes
    ----------
    runs
        The elements of `memory` that may be nonzero; None for all.
    """

    worker: int
    segment: int
    round: int
    offset: int
    memory: memoryview
    runs: Runs | None = None


class Sums:
    """The sums of one layout; callers hold a lock.

    Raises
    ------
    WireFault
        From ``push``, if a worker sends an unexpected frame.
    """

    def __init__(self, layout: Layout, size: int) -> None:
        self._layout = layout
        self._segments = [_SegmentSum(layout, number, size) for number in range(len(layout.segments))]

    @property
    def unfinished(self) -> bool:
        """Return whether a sum waits for a worker."""
        return any(any(counts) for segment in self._segments for counts in segment.counts)

    def begin(self, worker: int, frame: Frame, chunks: range) -> memoryview | None:
        """Expect a payload; if it is the first one, return the memory of the sum in which to receive it.

        Raises
        ------
        WireFault
            If the frame is unexpected.
        """
        if frame.kind is not FrameKind.PUSH:
            raise WireFault(f"a {frame.kind.name} frame to a server of sums")
        return self._segments[frame.segment].begin(worker, frame, chunks)

    def push(self, worker: int, frame: Frame, chunks: range, payload: Flat | None) -> Iterable[Reply]:
        """Add a worker's chunks; return the replies to workers.

        Parameters
        ----------
        payload
            The values; None if they were received in the memory that ``begin`` returned.
        """
        return self._segments[frame.segment].push(worker, frame, chunks, payload)

    def push_runs(self, worker: int, frame: Frame, sparse: SparseChunks) -> Iterable[Reply]:
        """Add a worker's chunks that are zero except for some runs; return the replies to workers.

        Raises
        ------
        WireFault
            If the frame is unexpected.
        """
        return self._segments[frame.segment].push_runs(worker, frame, sparse)

    def leave(self, worker: int) -> Iterable[Reply]:  # noqa: ARG002
        """Return no replies: without this worker no sum is ever complete."""
        return ()


class _SegmentSum:
    def __init__(self, layout: Layout, number: int, size: int) -> None:
        segment = layout.segments[number]
        self._number = number
        self._size = size
        self._dtype = segment.dtype
        self._size_bytes = segment.size_bytes
        self._chunk_bytes = layout.chunk_bytes
        self._deterministic = layout.deterministic
        chunks = layout.num_chunks(number)
        self._rounds = [[0] * chunks for _ in range(size)]
        self.counts = [[0] * chunks, [0] * chunks]
        self._contributions: list[Flat] = []
        self._sums: list[Flat] = []
        self._results: list[Flat] = []
        self._kept: dict[tuple[int, int], list[Flat]] = {}
        # For both results: the chunks in which everything is zero outside of these runs.
        self._sparse = [np.ones(chunks, dtype=bool) for _ in range(2)]
        self._runs = [Runs.none(), Runs.none()]
        # Bytes of a sum for each byte sent.
        self._widening = 1

    def _allocate(self) -> None:
        # At first use, so that plans that are never used cost nothing.
        self._results = [Flat.zeros(self._size_bytes, self._dtype) for _ in range(2)]
        self._sums = self._results
        if self._results[0].wide:
            self._widening = ITEM_BYTES["float32"] // ITEM_BYTES[self._dtype]
            wide_bytes = self._size_bytes * self._widening
            self._sums = [Flat.zeros(wide_bytes, "float32") for _ in range(2)]
        if self._deterministic:
            self._contributions = [Flat.zeros(self._size_bytes, self._dtype) for _ in range(self._size)]

    def begin(self, worker: int, frame: Frame, chunks: range) -> memoryview | None:
        self._expect(worker, frame, chunks)
        parity, stretch = frame.round % 2, slice(chunks.start, chunks.stop)
        counts = self.counts[parity]
        if self._deterministic or self._widening > 1 or any(counts[stretch]):
            return None
        counts[stretch] = [_COMING] * len(chunks)
        self._sparse[parity][stretch] = False
        return self._results[parity].memory[frame.offset : frame.offset + frame.length]

    def _expect(self, worker: int, frame: Frame, chunks: range) -> None:
        first, stop, due = chunks.start, chunks.stop, frame.round - 1
        rounds = self._rounds[worker]
        if rounds[first:stop].count(due) != len(chunks):
            expected = min(rounds[first:stop]) + 1
            raise WireFault(f"round {frame.round} of segment {self._number} where {expected} is due")
        rounds[first:stop] = [frame.round] * len(chunks)
        if not self._results:
            self._allocate()

    def push_runs(self, worker: int, frame: Frame, sparse: SparseChunks) -> Iterable[Reply]:
        chunks, item = sparse.chunks, ITEM_BYTES[self._dtype]
        self._expect(worker, frame, chunks)
        parity = frame.round % 2
        end = min(chunks.stop * self._chunk_bytes, self._size_bytes)
        replies: list[Reply] = []
        for count, start_byte, end_byte, alike in self._alike(self.counts[parity], chunks, end):
            runs, values = sparse.cut(start_byte // item, end_byte // item)
            if count == _COMING:
                values_here = Flat.zeros(end_byte - start_byte, self._dtype)
                values_here.put_at(runs.places - start_byte // item, values)
                self._keep(parity, values_here, start_byte, end_byte, 0)
                continue
            self._note_runs(parity, alike, (start_byte // item, end_byte // item), runs, first=count == 0)
            if self._deterministic:
                self._contributions[worker].fill(0, start_byte, end_byte)
                self._contributions[worker].put_at(runs.places, values)
            elif count:
                self._results[parity].add_at(runs.places, values)
            else:
                self._results[parity].put_at(runs.places, values)
            replies += self._count(frame.round, start_byte, end_byte, alike, count + 1)
        return replies

    def _note_runs(
        self, parity: int, alike: slice, elements: tuple[int, int], runs: Runs, *, first: bool
    ) -> None:
        """Record which elements of chunks may be nonzero; before the first contribution, set all to zero."""
        flags, known = self._sparse[parity], self._runs[parity]
        if first:
            result, (begin, end) = self._results[parity], elements
            if flags[alike].all():
                result.put_at(known.cut(begin, end).places + begin, 0)
            else:
                item = ITEM_BYTES[self._dtype]
                result.fill(0, begin * item, end * item)
            flags[alike] = True
            known = known.without(begin, end)
        self._runs[parity] = known.union(runs)

    def push(self, worker: int, frame: Frame, chunks: range, payload: Flat | None) -> Iterable[Reply]:
        if payload is None:
            return self._first_has_come(frame, chunks)
        parity, end = frame.round % 2, frame.offset + frame.length
        self._sparse[parity][chunks.start : chunks.stop] = False
        if self._deterministic:
            self._contributions[worker].copy(payload, frame.offset, end)
        replies: list[Reply] = []
        for count, start_byte, end_byte, alike in self._alike(self.counts[parity], chunks, end):
            at = start_byte - frame.offset
            if count == _COMING:
                self._keep(parity, payload, start_byte, end_byte, at)
                continue
            if not self._deterministic:
                self._take(parity, payload, start_byte, end_byte, at, add=count > 0)
            replies += self._count(frame.round, start_byte, end_byte, alike, count + 1)
        return replies

    def _keep(self, parity: int, values: Flat, start: int, end: int, at: int) -> None:
        """Copy a contribution that arrives while the first one to the same chunks is being received."""
        for start_byte in range(start, end, self._chunk_bytes):
            size = min(self._chunk_bytes, end - start_byte)
            kept = Flat.zeros(size, self._dtype)
            kept.copy(values, 0, size, at + start_byte - start)
            self._kept.setdefault((parity, start_byte // self._chunk_bytes), []).append(kept)

    def _first_has_come(self, frame: Frame, chunks: range) -> list[Reply]:
        parity, end = frame.round % 2, frame.offset + frame.length
        replies = self._count(frame.round, frame.offset, end, slice(chunks.start, chunks.stop), 1)
        for chunk in chunks if self._kept else ():
            start_byte = chunk * self._chunk_bytes
            end_byte = min(start_byte + self._chunk_bytes, end)
            for count, kept in enumerate(self._kept.pop((parity, chunk), ()), 2):
                self._take(parity, kept, start_byte, end_byte, 0, add=True)
                replies += self._count(frame.round, start_byte, end_byte, slice(chunk, chunk + 1), count)
        return replies

    def _count(self, round_: int, start: int, end: int, alike: slice, count: int) -> list[Reply]:
        """Record that `count` contributions to a range are in its sum; return replies if it is complete."""
        number = alike.stop - alike.start
        if count < self._size:
            self.counts[round_ % 2][alike] = [count] * number
            return []
        self.counts[round_ % 2][alike] = [0] * number
        return self._finish(round_ % 2, round_, start, end)

    def _alike(self, counts: list[int], chunks: range, end: int) -> Iterator[tuple[int, int, int, slice]]:
        """Split chunks into ranges to which the same number of workers have pushed."""
        start = chunks.start
        while start < chunks.stop:
            count, stop = counts[start], start + 1
            while stop < chunks.stop and counts[stop] == count:
                stop += 1
            yield count, start * self._chunk_bytes, min(stop * self._chunk_bytes, end), slice(start, stop)
            start = stop

    def _take(self, parity: int, values: Flat, start: int, end: int, at: int, *, add: bool) -> None:
        into, wider = self._sums[parity], self._widening
        (into.add if add else into.copy)(values, start * wider, end * wider, at)

    def _finish(self, parity: int, round_: int, start: int, end: int) -> list[Reply]:
        for rank, contribution in enumerate(self._contributions):
            self._take(parity, contribution, start, end, start, add=rank > 0)
        result = self._results[parity]
        if self._widening > 1:
            result.copy(self._sums[parity], start, end, start * self._widening)
        memory = result.memory[start:end]
        runs: Runs | None = None
        if self._sparse[parity][start // self._chunk_bytes : -(-end // self._chunk_bytes)].all():
            item = ITEM_BYTES[self._dtype]
            runs = self._runs[parity].cut(start // item, end // item)
        return [Reply(rank, self._number, round_, start, memory, runs) for rank in range(self._size)]
