"""The segments in flight, and when the next segment may be handed over."""

import math
import time

from pace.runtime.engine.sends import SegmentSend


class InFlight:
    """The segments that were handed over and are not summed yet; callers hold the engine's lock.

    Parameters
    ----------
    credit_bytes
        How many bytes may be in flight. One segment always may, so 0 means one at a time.
    hand_over_s
        How long before the end of the segment in flight to hand over the next one, in seconds.

    Attributes
    ----------
    num_segments
        Number of segments in flight.
    """

    def __init__(self, *, credit_bytes: int, hand_over_s: float) -> None:
        self._credit_bytes = credit_bytes
        self._hand_over_s = hand_over_s
        self._size_bytes = 0
        self._newest: SegmentSend | None = None
        self._segments: set[SegmentSend] = set()
        self._last_done_s = 0.0
        self.num_segments = 0

    def wait_s(self, candidate: SegmentSend) -> float:
        """Return how many seconds to wait before `candidate` is handed over; inf: until a segment ends."""
        within_credit = self._size_bytes + candidate.size_bytes <= self._credit_bytes
        if self.num_segments == 0 or within_credit:
            return 0.0
        # Exceed the credit just before the segment in flight ends, so that the hand-over takes no extra time.
        # Too early, the next segment would take half of the network.
        newest = self._newest
        if self.num_segments > 1 or newest is None or newest.at_most_s == math.inf:
            return math.inf
        start_s = max(newest.sent_s, self._last_done_s)
        return start_s + newest.at_most_s - self._hand_over_s - time.perf_counter()

    def ends_in_s(self, *, before: tuple[int, int]) -> float:
        """Return how many more seconds the segments before a given one are expected to take; at least 0.

        Parameters
        ----------
        before
            The number of finished rounds of the given segment, and its place in the plan.
        """
        urgent = [
            each
            for each in self._segments
            if (each.rounds - 1, each.number) < before and each.expected_s < math.inf
        ]
        if not urgent:
            return 0.0
        # They are sent one after another since the last one ended.
        start_s = max(min(each.sent_s for each in urgent), self._last_done_s)
        return max(start_s + sum(each.expected_s for each in urgent) - time.perf_counter(), 0.0)

    def add(self, segment: SegmentSend) -> None:
        """Record that a segment is handed over."""
        self._newest = segment
        self._segments.add(segment)
        self.num_segments += 1
        self._size_bytes += segment.size_bytes

    def remove(self, segment: SegmentSend) -> None:
        """Record that a segment ended at its ``done_s``, and how long the network was busy with it."""
        segment.note(segment.done_s - max(segment.sent_s, self._last_done_s))
        self._last_done_s = segment.done_s
        self._segments.discard(segment)
        self.num_segments -= 1
        self._size_bytes -= segment.size_bytes
