"""The elements of a segment that have changed since each worker last received them."""

import numpy as np

from pace.runtime.transports.runs import Runs

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
