"""Two queues of segments on one network card: all-reduces, and pushes to parameter servers.

Each queue has its own credit and its own thread, which asks for the next segment when there is room. A push
therefore never waits until ranks agree on the next all-reduce. Both queues follow the plan's order. Where
pushes can fill the card, a segment waits while the other queue is sending one that is needed earlier, but no
longer than that one is expected to take. A late rank therefore delays nobody.
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

# Where the transport chooses what it sends next, it is given all that is ready.
_NO_LIMIT = 1 << 62


class SendQueue:
    """The segments of some groups, and what is known of them; callers hold the engine's lock.

    Parameters
    ----------
    segments
        In planned order.
    lock
        The engine's.

    Attributes
    ----------
    wake
        Notified when the next segment may be another one.
    discipline, sequencing, role
        Who decides what goes next.
    sent_segments, sent_bytes
        What the transport was given so far.
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
        """Let what the other queue has under way, and is needed earlier, go first."""
        self._beside = other

    @property
    def idle(self) -> bool:
        """Whether nothing is under way and nothing waits to be sent."""
        return not (self.in_flight.num_segments or self.order.num_waiting)

    def turn_of(self, segment: SegmentSend) -> int:
        """Return a segment's place in the transport's order; smaller goes first."""
        return segment.group.rank if self.discipline == "priority" else segment.number

    def wait_s(self, candidate: SegmentSend) -> float:
        """Return how much longer to wait before `candidate` goes: for room, and for who is before it."""
        if self.role == "submitter":
            return 0.0  # rank 0 decides by being last: whoever held back would undo its choice
        patience_s = self.order.patience_s(candidate, idle=self.in_flight.num_segments == 0)
        if patience_s > 0:
            return patience_s
        return max(self.in_flight.wait_s(candidate), self._yields_s(candidate))

    def take_next(self, every: Sequence[SegmentSend], stopped: Callable[[], bool]) -> SegmentSend | None:
        """Block until a segment may be sent, and account for it; call it without the lock.

        Parameters
        ----------
        every
            The segments of all queues, by number.
        stopped
            Whether nothing is to be sent any more; the segment is None then.
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
        # With fewer servers than ranks it is the servers' links that pushes fill; this host's card has room.
        if self._beside is None or self._transport.num_servers < self._transport.size:
            return 0.0
        return self._beside.in_flight.ends_in_s(before=(candidate.rounds, candidate.number))


def calls_of(segments: Sequence[SegmentSend], queue_of: Sequence[SendQueue]) -> list[SegmentCall]:
    """Describe what will be summed whole, for the transport; `queue_of` is each group's queue."""
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
        Who decides about what goes over parameter servers in a job that also all-reduces.
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
