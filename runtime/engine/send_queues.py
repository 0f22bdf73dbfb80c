"""Two queues of segments on one network card: all-reduces, and pushes to parameter servers.

Each queue has its own credit and its own thread, which takes the next segment when there is room. So a push
never waits until ranks agree on the next all-reduce. Both queues follow the plan's order. If pushes can fill
the card, a segment waits while the other queue sends one that is needed earlier, but only as long as that one
is expected to take. So a late rank does not delay the other queue.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

import torch

from pace.runtime.engine.in_flight import InFlight
from pace.runtime.engine.plan import SendPlan
from pace.runtime.engine.send_order import SendOrder
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
        self.segments = segments
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
