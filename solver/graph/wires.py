"""What carries collectives: a wire takes one after another, or those of two communicators side by side."""

from collections import deque
from collections.abc import Container

import numpy as np


class FifoWire:
    """Carries one collective at a time, in the order in which they are issued.

    Attributes
    ----------
    start, end
        When each collective starts and ends, in seconds.
    """

    def __init__(self) -> None:
        self.start: dict[int, float] = {}
        self.end: dict[int, float] = {}
        self._free_at = 0.0

    def issue(self, node: int, now: float, seconds: float) -> None:
        """Issue a collective that takes the wire so long; no other was issued later."""
        self.start[node] = max(now, self._free_at)
        self.end[node] = self._free_at = self.start[node] + seconds

    def end_of(self, node: int) -> float:
        """Return when a collective ends if nothing is issued before that."""
        return self.end[node]

    def free_at(self) -> float:
        """Return when the last collective ends if nothing else is issued."""
        return self._free_at

    def finish(self) -> None:
        """Do nothing: each end is known."""


class SharedWire:
    """A wire of two communicators. Each carries one collective at a time, in the order of their issues.

    While both carry one, each gets half of the wire: it does in two seconds what it does alone in one. The
    wire as a whole is never faster than a ``FifoWire``.

    Attributes
    ----------
    start, end
        When each collective starts and ends, in seconds.
    """

    def __init__(self, apart: Container[int]) -> None:
        self.start: dict[int, float] = {}
        self.end: dict[int, float] = {}
        self._apart = apart
        self._queues: tuple[deque[int], deque[int]] = (deque(), deque())
        self._left: dict[int, float] = {}
        self._clock = 0.0

    def issue(self, node: int, now: float, seconds: float) -> None:
        """Issue a collective that takes the wire so long if it is alone; no other was issued later."""
        self._run(until=now)
        queue = self._queues[node in self._apart]
        self._left[node] = seconds
        if not queue:
            self.start[node] = now
        queue.append(node)

    def end_of(self, node: int) -> float:
        """Return when a collective ends if nothing is issued before that."""
        self._run(node=node)
        return self.end[node]

    def free_at(self) -> float:
        """Return when the last collective ends if nothing else is issued."""
        return self._clock + sum(self._left[node] for queue in self._queues for node in queue)

    def finish(self) -> None:
        """Carry all that was issued."""
        self._run()

    def _run(self, *, until: float = np.inf, node: int = -1) -> None:
        """Carry what was issued up to a time, or until a collective has ended."""
        while node not in self.end:
            busy = [queue for queue in self._queues if queue]
            if not busy:
                break
            next_done = min(busy, key=lambda queue: self._left[queue[0]])
            seconds = self._left[next_done[0]]
            ends = self._clock + seconds * len(busy)
            if ends > until:
                seconds = (until - self._clock) / len(busy)
            for queue in busy:
                self._left[queue[0]] = max(0.0, self._left[queue[0]] - seconds)
            if ends > until:
                break
            self._clock = self.end[next_done.popleft()] = ends
            if next_done:
                self.start[next_done[0]] = ends
        if until < np.inf:
            self._clock = until
