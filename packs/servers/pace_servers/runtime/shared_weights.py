"""Weights on a server, for asynchronous training.

Workers push the change of the weights by their own optimizer step. The server adds it and replies with the
current weights. If little has changed since the worker's last reply, such as rows of an embedding table, the
reply has only that. No optimizer runs here.
"""

from collections.abc import Iterable

from pace.wire.frames import Frame, FrameKind, WireFault
from pace_servers.runtime.arithmetic import ITEM_BYTES, Flat
from pace_servers.runtime.changed_elements import ChangedElements
from pace_servers.runtime.clocks import Clocks
from pace_servers.runtime.layout import Layout
from pace_servers.runtime.sparse_frames import SparseChunks, is_worth_it
from pace_servers.runtime.sums import Reply


class SharedWeights:
    """The weights of one layout; callers hold a lock.

    Asynchronous workers get a reply for each frame that they push. Under bounded staleness, a worker gets a
    copy of the whole share when its clock allows it.

    All workers begin with the weights of the seeder. One that does not have them pushes whole chunks at
    first: the reply to a whole chunk is whole.

    Raises
    ------
    WireFault
        From ``push`` and ``push_runs``, if a worker sends an unexpected frame.
    """

    def __init__(self, layout: Layout, size: int) -> None:
        self._layout = layout
        self.clocks = Clocks(size, layout.staleness)
        self._weights = [Flat.zeros(segment.size_bytes, segment.dtype) for segment in layout.segments]
        self._copies: dict[int, list[Flat]] = {}
        self._chunks = [range(layout.num_chunks(number)) for number in range(len(layout.segments))]
        self._num_chunks = sum(map(len, self._chunks))
        self._changed = [
            ChangedElements(
                size,
                segment.size_bytes // ITEM_BYTES[segment.dtype],
                layout.chunk_bytes // ITEM_BYTES[segment.dtype],
            )
            for segment in layout.segments
        ]
        self._rounds = [
            [[-1 if rank == layout.seeder else 0] * len(chunks) for chunks in self._chunks]
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
        due = self._expect(worker, frame, chunks)
        weights, end = self._weights[frame.segment], frame.offset + frame.length
        if frame.kind is FrameKind.SEED:
            weights.copy(payload, frame.offset, end)
            self._unseeded -= len(chunks)
            return [self._copy(worker, frame.segment, 0, chunks)]
        weights.add(payload, frame.offset, end)
        self._changed[frame.segment].note_chunks(chunks)
        return self._replies(worker, frame.segment, due, chunks)

    def push_runs(self, worker: int, frame: Frame, sparse: SparseChunks) -> Iterable[Reply]:
        """Add a worker's chunks that are zero except for some runs; return the replies to workers."""
        due = self._expect(worker, frame, sparse.chunks)
        self._weights[frame.segment].add_at(sparse.runs.places, sparse.values)
        self._changed[frame.segment].note_runs(sparse.runs)
        return self._replies(worker, frame.segment, due, sparse.chunks)

    def _expect(self, worker: int, frame: Frame, chunks: range) -> int:
        """Return the round of a frame; raise WireFault if it is not due."""
        rounds, alike = self._rounds[worker][frame.segment], slice(chunks.start, chunks.stop)
        due = min(rounds[alike]) + 1
        if rounds[alike].count(frame.round - 1) != len(chunks) or (frame.kind is FrameKind.SEED) != (
            due == 0
        ):
            raise WireFault(f"{frame.kind.name} {frame.round} of segment {frame.segment} where {due} is due")
        if frame.kind is not FrameKind.SEED and self._unseeded:
            raise WireFault("a change of weights before the first rank has sent all weights")
        rounds[alike] = [due] * len(chunks)
        return due

    def _replies(self, worker: int, segment: int, due: int, chunks: range) -> list[Reply]:
        """Return the replies after chunks of a worker were added."""
        replies = []
        if self._layout.staleness is None:
            replies.append(self._copy(worker, segment, due, chunks))
        self._received[worker] += len(chunks)
        if self._received[worker] == self._num_chunks:
            self._received[worker] = 0
            replies += self._answer(self.clocks.advance(worker))
        return replies

    def leave(self, worker: int) -> Iterable[Reply]:
        """Stop waiting for a worker; return the replies that other workers get now."""
        for changed in self._changed:
            changed.forget(worker)
        return self._answer(self.clocks.leave(worker))

    def _answer(self, workers: Iterable[int]) -> list[Reply]:
        if self._layout.staleness is None:
            return []
        return [
            self._copy(worker, segment, self.clocks.values[worker], chunks)
            for worker in workers
            for segment, chunks in enumerate(self._chunks)
        ]

    def _copy(self, worker: int, segment: int, round_: int, chunks: range) -> Reply:
        """Return a reply with what has changed in chunks since the worker last received them."""
        # A copy, as the weights go on changing and a reply must not change while it is sent.
        if worker not in self._copies:
            self._copies[worker] = [Flat.zeros(len(each.memory), each.dtype) for each in self._weights]
        weights, copy = self._weights[segment], self._copies[worker][segment]
        start = chunks.start * self._layout.chunk_bytes
        end = min(chunks.stop * self._layout.chunk_bytes, len(weights.memory))
        runs = self._changed[segment].take(worker, chunks)
        if runs is not None and is_worth_it(runs, end - start, weights.dtype):
            places = runs.places + start // ITEM_BYTES[weights.dtype]
            copy.put_at(places, weights.values_at(places))
        else:
            runs = None
            copy.memory[start:end] = weights.memory[start:end]
        return Reply(worker, segment, round_, start, copy.memory[start:end], runs)
