"""Which segment is sent next: the next one of the plan, or one that rank 0 chooses.

- planned: segments are sent in the plan's order, each once its group is submitted.
- leader: rank 0 chooses the longest tail among the submitted groups ("priority"), or the plan's order. If the
  next segment of the plan is late, it waits for a while ("adaptive") or takes another at once ("overtake").

When to overtake is the ski-rental problem. An adaptive leader waits for a late segment as long as the
overtaking segment takes, and then sends the latter. So it loses at most twice what a leader that knows the
future would lose. Overtaking at once usually loses more: plans cut segments so that the network is free at
the moment at which an urgent group becomes ready, and a segment in flight cannot be recalled.
"""

import heapq
import math
import time
from collections.abc import Sequence

from pace.runtime.engine.sends import GroupSend, SegmentSend
from pace.runtime.transports.transport import Discipline, Role


class SendOrder:
    """The segments of a round that wait to be sent; callers hold the engine's lock.

    Parameters
    ----------
    segments
        The segments of all groups, in planned order.
    role
        Whether this rank leads or follows. A follower only counts segments, as rank 0 chooses them.

    Attributes
    ----------
    num_waiting
        Number of segments that may be sent and have not been.
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
        # Ordered by round first: a peer may need this round's last segment before it can compute gradients of
        # the next round. Then by a number that is different for all groups, so that groups are never
        # compared.
        self._queue: list[tuple[int, int, GroupSend]] = []
        self._idle_since: float | None = None
        self.num_waiting = 0

    def enter(self, send: GroupSend) -> bool:
        """Allow a group to be sent; return whether this can change which segment is next."""
        send.submitted = True
        send.rounds += 1
        self.num_waiting += send.unsent
        if self._chooses:
            self._push(send)
        return not self._planned or self._order[self._position].group is send

    def next(self) -> SegmentSend | None:
        """Return the next segment, or None if its group is not submitted yet."""
        if self.num_waiting == 0:
            return None
        if self._planned:
            segment = self._order[self._position]
            return segment if segment.group.submitted else None
        return self._queue[0][-1].following()

    def patience_s(self, segment: SegmentSend, *, idle: bool) -> float:
        """Return how many more seconds to wait for a late segment that this one would overtake.

        Parameters
        ----------
        idle
            Whether nothing is in flight. If something is, waiting costs nothing.
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
        """Record that a segment is sent."""
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
        """Record that a group is not sent in this round."""
        send.rounds += 1
        for segment in send.segments:
            self._pass(segment)

    def separate_halves(self, *, apart: bool) -> None:
        """Take reduce-scatters before gathers from now on, or the plan's order from the next round on."""
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
