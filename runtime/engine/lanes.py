"""What carries segments without regard to the others: all-reduces, or the links to parameter servers.

Each lane has an order, a credit and a thread of its own, which asks for the next segment when there is room:
so an all-reduce never waits for a push, nor a push for the ranks to agree on the next all-reduce.
"""

import threading
from collections.abc import Sequence
from typing import Literal

import torch

from pace.runtime.engine.in_flight import InFlight
from pace.runtime.engine.plan import Plan
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

LaneName = Literal["segments", "servers"]

# Where the transport chooses what it sends next, it is given all that is ready.
_NO_LIMIT = 1 << 62


class Lane:
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
    """

    def __init__(
        self,
        name: LaneName,
        segments: Sequence[SegmentSend],
        transport: Transport,
        lock: threading.Lock,
        *,
        sequencing: Sequencing,
        discipline: Discipline,
        credit_bytes: int,
    ) -> None:
        self.name = name
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
        return patience_s if patience_s > 0 else self.in_flight.wait_s(candidate)


def calls_of(segments: Sequence[SegmentSend], lane_of: Sequence[Lane]) -> list[SegmentCall]:
    """Describe what will be summed whole, for the transport; `lane_of` is each group's lane."""
    return [
        SegmentCall(
            name=segment.name,
            tensor=segment.tensor,
            link=segment.link,
            turn=lane.turn_of(segment),
            pushed=lane.sequencing == "keyed",
        )
        for segment in segments
        for lane in [lane_of[segment.group.number]]
        if isinstance(segment.tensor, torch.Tensor)
    ]


def lanes_of(
    plan: Plan,
    groups: Sequence[GroupSend],
    segments: Sequence[SegmentSend],
    transport: Transport,
    lock: threading.Lock,
    *,
    discipline: Discipline,
    pushed_discipline: Discipline,
) -> tuple[list[Lane], list[Lane]]:
    """Divide a plan's segments among lanes; return the lanes, and each group's.

    Parameters
    ----------
    pushed_discipline
        Who decides about what goes over parameter servers in a job that also all-reduces.
    """
    pushed = {
        send.number
        for send, planned in zip(groups, plan.groups, strict=True)
        if planned.exchange == "push-pull" and transport.sequencing != "keyed"
    }
    rest = [segment for segment in segments if segment.group.number not in pushed]
    lanes = []
    if rest or not pushed:
        lanes.append(
            Lane(
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
        lanes.append(
            Lane(
                "servers",
                [segment for segment in segments if segment.group.number in pushed],
                transport,
                lock,
                sequencing="keyed",
                discipline=pushed_discipline,
                credit_bytes=plan.credit_bytes,
            )
        )
    return lanes, [lanes[-1] if send.number in pushed else lanes[0] for send in groups]
