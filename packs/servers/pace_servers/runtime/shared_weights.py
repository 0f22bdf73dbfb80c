"""Weights on a server, for asynchronous training.

Workers push the change of the weights by their own optimizer step. The server adds it and replies with the
current weights. If little has changed since the worker's last reply, such as rows of an embedding table, the
reply has only that. No optimizer runs here.
"""

from collections.abc import Iterable

import numpy as np

from pace.runtime.transports.runs import Runs
from pace.wire.frames import Frame, FrameKind, WireFault
from pace_servers.runtime.arithmetic import ITEM_BYTES, Flat
from pace_servers.runtime.layout import Layout
from pace_servers.runtime.sparse_frames import SparseChunks, is_worth_it
from pace_servers.runtime.sums import Reply


class Clocks:
    """Counts every worker's pushes; callers hold a lock.

    A worker whose clock is k gets weights once the slowest worker's clock is at least k - staleness: it never
    begins to compute while it is more than `staleness` ahead.

    Parameters
    ----------
    staleness
        How many clocks a worker may be ahead; None for any number (asynchronous), 0 for bulk-synchronous
        training.

    Attributes
    ----------
    values
        The clock of each worker.
    largest_lead
        The most clocks by which a worker was ahead of the slowest one when it went on.
    """

    def __init__(self, size: int, staleness: int | None) -> None:
        self.values = [0] * size
        self.staleness = staleness
        self.largest_lead = 0
        self._present = [True] * size
        self._waiting: set[int] = set()

    def advance(self, worker: int) -> list[int]:
        """Record that a worker has pushed; return the workers that may go on now, in order."""
        self.values[worker] += 1
        self._waiting.add(worker)
        return self._released()

    def leave(self, worker: int) -> list[int]:
        """Record that a worker will push no more; return the workers that may go on now."""
        self._present[worker] = False
        self._waiting.discard(worker)
        return self._released()

    def _slowest(self) -> int:
        here = zip(self.values, self._present, strict=True)
        return min((value for value, present in here if present), default=0)

    def _released(self) -> list[int]:
        slowest = self._slowest()
        free = sorted(
            worker
            for worker in self._waiting
            if self.staleness is None or slowest >= self.values[worker] - self.staleness
        )
        self._waiting.difference_update(free)
        self.largest_lead = max([self.largest_lead, *(self.values[worker] - slowest for worker in free)])
        return free


# Merge a worker's parts when it has so many: one that pushes rarely must not fill the server's memory.
_MOST_PARTS = 64


class ChangedElements:
    """Elements of one segment of shared weights; callers hold a lock.

    Changes of whole chunks are noted by chunk, so that dense training pays next to nothing for it.

    Parameters
    ----------
    size
        Number of workers.
    num_elements, chunk_elements
        The elements of the segment and of each of its chunks.
    """

    def __init__(self, size: int, num_elements: int, chunk_elements: int) -> None:
        self._num_elements = num_elements
        self._chunk_elements = chunk_elements
        self._whole = np.zeros((size, -(-num_elements // chunk_elements)), dtype=bool)
        self._parts: list[list[Runs]] = [[] for _ in range(size)]
        self._gone: set[int] = set()

    def note_chunks(self, chunks: range) -> None:
        """Record that all elements of chunks may have changed."""
        self._whole[:, chunks.start : chunks.stop] = True

    def note_runs(self, runs: Runs) -> None:
        """Record that runs of the segment may have changed."""
        for worker, parts in enumerate(self._parts):
            if worker in self._gone:
                continue
            parts.append(runs)
            if len(parts) >= _MOST_PARTS:
                parts[:] = [Runs.merged(parts)]

    def forget(self, worker: int) -> None:
        """Keep nothing for a worker that has left: it receives no more."""
        self._gone.add(worker)
        self._parts[worker].clear()

    def take(self, worker: int, chunks: range) -> Runs | None:
        """Return what has changed in chunks for a worker that now receives it.

        Returns
        -------
        Runs or None
            Runs from the first of these chunks on; None for all elements.
        """
        first, last = chunks.start * self._chunk_elements, chunks.stop * self._chunk_elements
        last = min(last, self._num_elements)
        found = Runs.none()
        if self._parts[worker]:
            parts = self._parts[worker]
            known = parts[0] if len(parts) == 1 else Runs.merged(parts)
            found, rest = known.cut(first, last), known.without(first, last)
            self._parts[worker] = [rest] if len(rest.starts) else []
        flags = self._whole[worker, chunks.start : chunks.stop]
        whole = np.flatnonzero(flags)
        if not len(whole):
            return found
        flags[:] = False
        if len(whole) == len(chunks):
            return None
        starts = whole * self._chunk_elements
        lengths = np.minimum(self._chunk_elements, last - first - starts)
        return Runs.merged([found, Runs(starts, lengths)])


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
