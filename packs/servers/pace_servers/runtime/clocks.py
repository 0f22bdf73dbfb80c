"""The clocks of workers, and which workers may go on under bounded staleness."""


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
