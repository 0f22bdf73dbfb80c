"""Which segment goes next: the plan's, or what rank 0 prefers.

- planned: segments go out in the plan's order, each when its group is handed over.
- leader: the longest tail among the groups that were handed over ("priority"), the plan's order with
  patience for what is late ("adaptive") or without ("overtake").

When to overtake is the ski-rental problem: an adaptive leader idles for a late segment as long as the one
that would overtake it takes, and then sends that one. It so loses at most twice what a leader who knew
the future would lose. Overtaking at once loses more in the ordinary case: plans cut segments so that the
network is free the moment an urgent group becomes ready, and what is in flight is not recalled.
"""

import heapq
import math
import time
from collections.abc import Sequence

from pace.runtime.engine.sends import GroupSend, SegmentSend
from pace.runtime.transports.transport import Discipline, Role


class SendOrder:
    """The segments of a round that may be sent and are not; callers hold the engine's lock.

    Parameters
    ----------
    segments
        Of all groups, in planned order.
    role
        A follower learns what goes next from rank 0, so its segments are only counted.

    Attributes
    ----------
    num_waiting
        How many segments may be sent and are not.
    """

    def __init__(self, segments: Sequence[SegmentSend], *, discipline: Discipline, role: Role) -> None:
        self._planned_order = segments
        self._apart = False
        self._order = segments
        self._discipline = discipline
        self._planned = role == "planned"
        self._chooses = role in ("leader", "submitter")
        # The first segment of the plan that is not sent yet this round, and how many rounds are over.
        self._position = 0
        self._rounds = 0
        # By round first: a peer may be waiting for this round's last segment before it can compute any of
        # the next round's gradients. Then by a number that no two groups share, so none are compared.
        self._queue: list[tuple[int, int, GroupSend]] = []
        self._idle_since: float | None = None
        self.num_waiting = 0

    def enter(self, send: GroupSend) -> bool:
        """Let a group be sent from now on; say whether that can change what goes next."""
        send.submitted = True
        send.rounds += 1
        self.num_waiting += send.unsent
        if self._chooses:
            self._push(send)
        return not self._planned or self._order[self._position].group is send

    def next(self) -> SegmentSend | None:
        """Return what goes next, if it is there."""
        if self.num_waiting == 0:
            return None
        if self._planned:
            segment = self._order[self._position]
            return segment if segment.group.submitted else None
        return self._queue[0][-1].following()

    def patience_s(self, segment: SegmentSend, *, idle: bool) -> float:
        """Return how much longer to wait for a late segment that this one would overtake.

        Parameters
        ----------
        idle
            Whether nothing is under way: else nothing is lost by waiting.
        """
        if self._discipline != "adaptive" or segment is self._order[self._position]:
            self._idle_since = None
            return 0.0
        if not idle:
            return math.inf
        now = time.perf_counter()
        if self._idle_since is None:
            self._idle_since = now
        elapsed_s = now - self._idle_since
        known_s = segment.expected_s if segment.expected_s < math.inf else 0.0
        if elapsed_s >= known_s:
            self._idle_since = None
        return known_s - elapsed_s

    def take(self, segment: SegmentSend) -> None:
        """Take note that a segment is sent."""
        send = segment.group
        send.unsent -= 1
        send.submitted = send.unsent > 0
        self.num_waiting -= 1
        if self._chooses:
            heapq.heappop(self._queue)
            if send.unsent:
                self._push(send)
        self._pass(segment)

    def leave_out(self, send: GroupSend) -> None:
        """Take note that a group is not sent in this round."""
        send.rounds += 1
        for segment in send.segments:
            self._pass(segment)

    def separate_halves(self, *, apart: bool) -> None:
        """Take reduce-scatters before all gathers, from now on, or as planned from the next round on."""
        self._apart = apart
        if apart:
            self._position = 0
            self._order = self._in_halves()
            self._advance()

    def _in_halves(self) -> Sequence[SegmentSend]:
        return sorted(self._planned_order, key=lambda segment: segment.group.second_half)

    def _pass(self, segment: SegmentSend) -> None:
        segment.rounds += 1
        self._advance()

    def _advance(self) -> None:
        while self._order[self._position].rounds > self._rounds:
            self._position += 1
            if self._position == len(self._order):
                self._position = 0
                self._rounds += 1
                if not self._apart:
                    self._order = self._planned_order

    def _push(self, send: GroupSend) -> None:
        by_plan = self._discipline in ("adaptive", "overtake")
        turn = send.following().number if by_plan else send.rank
        heapq.heappush(self._queue, (send.rounds, turn, send))
