"""When any of some intervals ran: their union, asked for how much of it lies between two moments."""

import bisect
from collections.abc import Iterable


class BusyTime:
    """Intervals as (start, end) in seconds, joined where they touch, in order."""

    def __init__(self, intervals: Iterable[tuple[float, float]]) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        for start, end in sorted(intervals):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)

    @property
    def intervals(self) -> list[tuple[float, float]]:
        """The union as intervals in order."""
        return list(zip(self._starts, self._ends, strict=True))

    def within(self, start_s: float, end_s: float) -> float:
        """Return how much of an interval was busy, in seconds."""
        busy = 0.0
        for place in range(bisect.bisect_right(self._ends, start_s), len(self._starts)):
            if self._starts[place] >= end_s:
                break
            busy += min(self._ends[place], end_s) - max(self._starts[place], start_s)
        return max(busy, 0.0)
