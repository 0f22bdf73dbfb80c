"""A server's sums: every worker's chunk added once a round, and the result kept until all have it.

Two results are kept for every segment, for odd and for even rounds. That is enough: a worker pushes round
r + 2 only after it has the sum of round r + 1, to which every worker contributed, and none contributes to
that before it has the sum of round r.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from pace.runtime.parameter_server.layout import DTYPES, Layout, memory_of
from pace.runtime.parameter_server.wire import Frame, FrameKind, WireFault

_SUMMED_IN = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A stretch of memory that is due to a worker; it does not change before the worker has it."""

    worker: int
    segment: int
    round: int
    offset: int
    memory: memoryview


class Sums:
    """The sums of one layout; callers hold a lock.

    Raises
    ------
    WireFault
        From ``push``, when a worker sends what cannot be due.
    """

    def __init__(self, layout: Layout, size: int) -> None:
        self._layout = layout
        self._size = size
        self._segments = [_SegmentSum(layout, number, size) for number in range(len(layout.segments))]

    @property
    def unfinished(self) -> bool:
        """Whether a sum waits for some worker."""
        return any(any(counts) for segment in self._segments for counts in segment.counts)

    def push(self, worker: int, frame: Frame, payload: torch.Tensor) -> Iterable[Reply]:
        """Add a worker's chunk; return what is due to whom."""
        if frame.kind is not FrameKind.PUSH:
            raise WireFault(f"a {frame.kind.name} frame to a server of sums")
        number = self._layout.check(frame)
        return self._segments[frame.segment].push(worker, frame, number, payload)

    def leave(self, worker: int) -> Iterable[Reply]:  # noqa: ARG002
        """Nobody is let go on: what lacks a worker is never summed."""
        return ()


class _SegmentSum:
    def __init__(self, layout: Layout, number: int, size: int) -> None:
        segment = layout.segments[number]
        self._number = number
        self._size = size
        self._dtype = DTYPES[segment.dtype]
        self._elements = segment.size_bytes // self._dtype.itemsize
        self._contributions: torch.Tensor | None = None
        self._deterministic = layout.deterministic
        chunks = layout.num_chunks(number)
        self._rounds = [[0] * chunks for _ in range(size)]
        self.counts = [[0] * chunks, [0] * chunks]
        self._sums: list[torch.Tensor] = []
        self._results: list[torch.Tensor] = []
        self._memories: list[memoryview] = []

    def _allocate(self) -> None:
        # Not before it is used: plans that are only tried cost nothing.
        wide = _SUMMED_IN.get(self._dtype, self._dtype)
        self._sums = [torch.empty(self._elements, dtype=wide) for _ in range(2)]
        self._results = (
            self._sums
            if wide is self._dtype
            else [torch.empty(self._elements, dtype=self._dtype) for _ in range(2)]
        )
        self._memories = [memory_of(result) for result in self._results]
        if self._deterministic:
            self._contributions = torch.empty(self._size, self._elements, dtype=self._dtype)

    def push(self, worker: int, frame: Frame, chunk: int, payload: torch.Tensor) -> Iterable[Reply]:
        if frame.round != self._rounds[worker][chunk] + 1:
            due = self._rounds[worker][chunk] + 1
            raise WireFault(f"round {frame.round} of segment {self._number} where {due} is due")
        self._rounds[worker][chunk] = frame.round
        if not self._sums:
            self._allocate()
        parity = frame.round % 2
        part = slice(
            frame.offset // self._dtype.itemsize, (frame.offset + frame.length) // self._dtype.itemsize
        )
        values = payload.view(self._dtype)
        into = self._sums[parity][part]
        if self._contributions is not None:
            self._contributions[worker, part] = values
        elif self.counts[parity][chunk] == 0:
            into.copy_(values)
        else:
            into.add_(values)
        self.counts[parity][chunk] += 1
        if self.counts[parity][chunk] < self._size:
            return ()
        self.counts[parity][chunk] = 0
        if self._contributions is not None:
            into.copy_(self._contributions[0, part])
            for rank in range(1, self._size):
                into.add_(self._contributions[rank, part])
        if self._results[parity] is not self._sums[parity]:
            self._results[parity][part] = into
        memory = self._memories[parity][frame.offset : frame.offset + frame.length]
        return [
            Reply(worker=rank, segment=self._number, round=frame.round, offset=frame.offset, memory=memory)
            for rank in range(self._size)
        ]
