"""Weights on a server, for asynchronous training.

Workers push the change of the weights by their own optimizer step. The server adds it and replies with the
current weights. No optimizer runs here.
"""

from collections.abc import Iterable

from pace.runtime.servers.arithmetic import Flat
from pace.runtime.servers.clocks import Clocks
from pace.runtime.servers.layout import Layout
from pace.runtime.servers.sums import Reply
from pace.wire.frames import Frame, FrameKind, WireFault


class SharedWeights:
    """The weights of one layout; callers hold a lock.

    Asynchronous workers get a reply for each chunk. Under bounded staleness, a worker gets a copy of the
    whole share when its clock allows it.

    Raises
    ------
    WireFault
        From ``push``, if a worker sends an unexpected frame.
    """

    def __init__(self, layout: Layout, size: int) -> None:
        self._layout = layout
        self.clocks = Clocks(size, layout.staleness)
        self._weights = [Flat.zeros(segment.size_bytes, segment.dtype) for segment in layout.segments]
        self._copies: dict[int, list[memoryview]] = {}
        self._memories = [each.memory for each in self._weights]
        self._num_chunks = sum(layout.num_chunks(number) for number in range(len(layout.segments)))
        self._rounds = [
            [
                [-1 if rank == layout.seeder else 0] * layout.num_chunks(number)
                for number in range(len(layout.segments))
            ]
            for rank in range(size)
        ]
        self._unseeded = self._num_chunks
        self._received = [0] * size

    @property
    def unfinished(self) -> bool:
        """Return False: nothing here waits for a worker that leaves."""
        return False

    def begin(self, worker: int, frame: Frame, chunks: range) -> memoryview | None:  # noqa: ARG002
        """Return None: payloads are not received in place, as weights may be read at any time."""
        return None

    def push(self, worker: int, frame: Frame, chunks: range, payload: Flat | None) -> Iterable[Reply]:
        """Add a worker's chunks, or use them as the first weights; return the replies to workers."""
        assert payload is not None
        rounds, alike = self._rounds[worker][frame.segment], slice(chunks.start, chunks.stop)
        due = min(rounds[alike]) + 1
        if rounds[alike].count(frame.round - 1) != len(chunks) or (frame.kind is FrameKind.SEED) != (
            due == 0
        ):
            raise WireFault(f"{frame.kind.name} {frame.round} of segment {frame.segment} where {due} is due")
        if frame.kind is not FrameKind.SEED and self._unseeded:
            raise WireFault("a change of weights before the first rank has sent all weights")
        rounds[alike] = [due] * len(chunks)
        weights, end = self._weights[frame.segment], frame.offset + frame.length
        if frame.kind is FrameKind.SEED:
            weights.copy(payload, frame.offset, end)
            self._unseeded -= len(chunks)
            return [self._copy(worker, frame.segment, 0, frame.offset, frame.length)]
        weights.add(payload, frame.offset, end)
        replies = []
        if self._layout.staleness is None:
            replies.append(self._copy(worker, frame.segment, due, frame.offset, frame.length))
        self._received[worker] += len(chunks)
        if self._received[worker] == self._num_chunks:
            self._received[worker] = 0
            replies += self._answer(self.clocks.advance(worker))
        return replies

    def leave(self, worker: int) -> Iterable[Reply]:
        """Stop waiting for a worker; return the replies that other workers get now."""
        return self._answer(self.clocks.leave(worker))

    def _answer(self, workers: Iterable[int]) -> list[Reply]:
        if self._layout.staleness is None:
            return []
        return [
            self._copy(worker, segment, self.clocks.values[worker], 0, len(memory))
            for worker in workers
            for segment, memory in enumerate(self._memories)
        ]

    def _copy(self, worker: int, segment: int, round_: int, offset: int, length: int) -> Reply:
        # A copy, as the weights go on changing and a reply must not change while it is sent.
        if worker not in self._copies:
            self._copies[worker] = [memoryview(bytearray(len(memory))) for memory in self._memories]
        copy = self._copies[worker][segment][offset : offset + length]
        copy[:] = self._memories[segment][offset : offset + length]
        return Reply(worker, segment, round_, offset, copy)
