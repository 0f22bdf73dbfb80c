"""Two queues of segments on one network card: all-reduces, and pushes to parameter servers.

Each queue has its own credit and its own thread, which takes the next segment when there is room. So a push
never waits until ranks agree on the next all-reduce. Both queues follow the plan's order. If pushes can fill
the card, a segment waits while the other queue sends one that is needed earlier, but only as long as that one
is expected to take. So a late rank does not delay the other queue.

The next segment of a queue is the next one of the plan, or one that rank 0 chooses:

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
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

import torch

from pace.runtime.engine.plan import SendPlan
from pace.runtime.engine.sends import GroupSend, SegmentSend
from pace.runtime.transports.transport import (
    Discipline,
    Role,
    SegmentCall,
    Sequencing,
    Transport,
    role_of,
)

QueueName = Literal["segments", "servers"]

# If the transport chooses what it sends next, it gets all ready segments.
_NO_LIMIT = 1 << 62


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


class SendQueue:
    """The segments of some groups and their state; callers hold the engine's lock.

    Parameters
    ----------
    segments
        The segments, in planned order.
    lock
        The engine's lock.

    Attributes
    ----------
    wake
        Notified when the next segment may have changed.
    discipline, sequencing, role
        What decides which segment is sent next.
    sent_segments, sent_bytes
        Number of segments and bytes handed over to the transport.
    """

    def __init__(
        self,
        name: QueueName,
        segments: Sequence[SegmentSend],
        transport: Transport,
        lock: threading.Lock,
        *,
        sequencing: Sequencing,
        discipline: Discipline,
        credit_bytes: int,
    ) -> None:
        self.name = name
        self._transport = transport
        self._beside: SendQueue | None = None
        self._lock = lock
        self.sent_segments = self.sent_bytes = 0
        self.wake = threading.Condition(lock)
        self.sequencing = sequencing
        self.discipline = discipline
        self.role: Role = role_of(transport.rank, sequencing, discipline)
        self.order = SendOrder(segments, discipline=discipline, role=self.role)
        self.in_flight = InFlight(
            credit_bytes=_NO_LIMIT if sequencing == "keyed" else credit_bytes,
            hand_over_s=transport.hand_over_s,
        )

    def share_card_with(self, other: "SendQueue") -> None:
        """Let segments in flight of the other queue that are needed earlier go first."""
        self._beside = other

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight and nothing waits to be sent."""
        return not (self.in_flight.num_segments or self.order.num_waiting)

    def turn_of(self, segment: SegmentSend) -> int:
        """Return a segment's place in the transport's order; smaller goes first."""
        return segment.group.rank if self.discipline == "priority" else segment.number

    def wait_s(self, candidate: SegmentSend) -> float:
        """Return how many seconds to wait before `candidate` is sent: for room, and for earlier segments."""
        if self.role == "submitter":
            return 0.0  # rank 0 decides by submitting last; a follower that waited would undo its choice
        patience_s = self.order.patience_s(candidate, idle=self.in_flight.num_segments == 0)
        if patience_s > 0:
            return patience_s
        return max(self.in_flight.wait_s(candidate), self._yields_s(candidate))

    def take_next(self, every: Sequence[SegmentSend], stopped: Callable[[], bool]) -> SegmentSend | None:
        """Block until a segment may be sent, record it as sent and return it; call it without the lock.

        Parameters
        ----------
        every
            The segments of all queues, by number.
        stopped
            Returns whether nothing will be sent any more. The result is None then.
        """
        if self.role == "follower":
            with self._lock:
                self.wake.wait_for(lambda: stopped() or self.order.num_waiting > 0)
                if stopped():
                    return None
            chosen = every[self._transport.decide(None)]
            with self._lock:
                self.wake.wait_for(lambda: stopped() or chosen.group.submitted)
                return None if stopped() else self._take(chosen)
        with self._lock:
            while True:
                if stopped():
                    return None
                segment = self.order.next()
                wait_s = math.inf if segment is None else self.wait_s(segment)
                if segment is not None and wait_s <= 0:
                    self._take(segment)
                    break
                self.wake.wait(None if wait_s == math.inf else wait_s)
        if self.role == "leader" and self.sequencing == "decision":
            self._transport.decide(segment.number)
        return segment

    def take_planned(self, stopped: Callable[[], bool]) -> SegmentSend | None:
        """Return the next segment of the plan and record it as sent; None if its group is not submitted."""
        with self._lock:
            segment = None if stopped() else self.order.next()
            return None if segment is None else self._take(segment)

    def _take(self, segment: SegmentSend) -> SegmentSend:
        send = segment.group
        if send.unsent == len(send.segments):
            send.sent_s = time.perf_counter()
        segment.sent_s = time.perf_counter()
        self.order.take(segment)
        self.in_flight.add(segment)
        self.sent_segments += 1
        self.sent_bytes += segment.size_bytes
        return segment

    def _yields_s(self, candidate: SegmentSend) -> float:
        # With fewer servers than ranks, pushes fill the servers' links, and this host's card has room.
        if self._beside is None or self._transport.num_servers < self._transport.size:
            return 0.0
        return self._beside.in_flight.ends_in_s(before=(candidate.rounds, candidate.number))


def calls_of(segments: Sequence[SegmentSend], queue_of: Sequence[SendQueue]) -> list[SegmentCall]:
    """Describe the segments to the transport, except those of sharded plans; `queue_of` is by group."""
    return [
        SegmentCall(
            name=segment.name,
            tensor=segment.tensor,
            link=segment.link,
            turn=queue.turn_of(segment),
            pushed=queue.sequencing == "keyed",
        )
        for segment in segments
        for queue in [queue_of[segment.group.number]]
        if isinstance(segment.tensor, torch.Tensor)
    ]


def send_queues_of(
    plan: SendPlan,
    groups: Sequence[GroupSend],
    segments: Sequence[SegmentSend],
    transport: Transport,
    lock: threading.Lock,
    *,
    discipline: Discipline,
    pushed_discipline: Discipline,
) -> tuple[list[SendQueue], list[SendQueue]]:
    """Divide a plan's segments among queues; return the queues, and the queue of each group.

    Parameters
    ----------
    pushed_discipline
        What decides the order of segments sent over parameter servers in a job that also all-reduces.
    """
    pushed = {
        send.number
        for send, planned in zip(groups, plan.groups, strict=True)
        if planned.exchange == "servers" and transport.sequencing != "keyed"
    }
    rest = [segment for segment in segments if segment.group.number not in pushed]
    send_queues = []
    if rest or not pushed:
        send_queues.append(
            SendQueue(
                "segments",
                rest,
                transport,
                lock,
                sequencing=transport.sequencing,
                discipline=discipline,
                credit_bytes=plan.credit_bytes,
            )
        )
    if pushed:
        send_queues.append(
            SendQueue(
                "servers",
                [segment for segment in segments if segment.group.number in pushed],
                transport,
                lock,
                sequencing="keyed",
                discipline=pushed_discipline,
                credit_bytes=plan.credit_bytes,
            )
        )
    if len(send_queues) == 2:
        send_queues[0].share_card_with(send_queues[1])
        send_queues[1].share_card_with(send_queues[0])
    return send_queues, [send_queues[-1] if send.number in pushed else send_queues[0] for send in groups]
