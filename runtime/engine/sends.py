"""The engine's state of a round: the progress of each group, and the last times of each segment."""

import math
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from pace.runtime.engine.plan import PlannedGroup, PlannedSegment, SendPlan
from pace.runtime.engine.report import GroupTimes, SegmentTimes
from pace.runtime.transports.runs import Runs

_ROUNDS_KEPT = 8


class GroupSend:
    """One group's progress through a round.

    Attributes
    ----------
    rank
        Its place among all groups, longest tail first.
    second_half
        Whether it is an all-gather.
    submitted
        Whether it may be sent and has segments left to send.
    sent
        Set while all of it is handed over to the transport; used with tensors on a device.
    done
        Set while none of it is left to send or in flight.
    computed
        The moment at which the device has computed it; None in the host's memory.
    device_waits
        The moments from and to which the device waited for it in the last round.
    """

    __slots__ = (
        "computed",
        "device_waits",
        "done",
        "done_s",
        "number",
        "rank",
        "remaining",
        "rounds",
        "second_half",
        "segments",
        "sent",
        "sent_s",
        "submitted",
        "submitted_s",
        "unsent",
        "waited_s",
    )

    def __init__(self, number: int, *, second_half: bool = False) -> None:
        self.number = number
        self.rank = number
        self.second_half = second_half
        self.segments: list[SegmentSend] = []
        self.sent = threading.Event()
        self.sent.set()
        self.done = threading.Event()
        self.done.set()
        self.submitted = False
        self.unsent = 0
        self.remaining = 0
        self.submitted_s = 0.0
        self.sent_s = 0.0
        self.done_s = 0.0
        self.rounds = 0
        self.waited_s = 0.0
        self.computed: Any = None
        self.device_waits: list[tuple[Any, Any]] = []

    def following(self) -> "SegmentSend":
        """The first of its segments that is not sent yet this round."""
        return self.segments[len(self.segments) - self.unsent]

    def give_runs(self, runs: Runs | None) -> None:
        """Set the elements that may be nonzero in this round; None for all."""
        for segment in self.segments:
            segment.runs = None if runs is None else segment.cut(runs)


SegmentMemory = torch.Tensor | tuple[torch.Tensor, ...]
"""The memory that a segment sends: a contiguous tensor or, in a sharded plan, matrices of rows for ranks."""


class SegmentSend:
    """One call of the transport.

    Attributes
    ----------
    expected_s
        How long the network will be busy with it if all ranks are in time, in seconds: the second shortest
        time of the last rounds. In longer ones a rank was late. The shortest may be wrong: if the end of the
        previous segment was noticed late, this one seems to take no time.
    at_most_s
        The longest that the network will be busy with it, in seconds: the second longest time of the last
        rounds. If compute slows the network, this is much longer than `expected_s`.
    summed
        The event at which the device has the sum, if the transport has one.
    runs
        The elements that may be nonzero in this round; None for all.
    """

    __slots__ = (
        "_recent",
        "at_most_s",
        "done_s",
        "expected_s",
        "group",
        "link",
        "name",
        "number",
        "offset_bytes",
        "rounds",
        "runs",
        "sent_s",
        "size_bytes",
        "summed",
        "tensor",
    )

    def __init__(
        self, number: int, send: GroupSend, tensor: SegmentMemory, name: str, planned: PlannedSegment
    ) -> None:
        self.number = number
        self.offset_bytes = planned.offset_bytes
        self.group = send
        self.link = planned.link
        self.tensor = tensor
        self.name = name
        self.size_bytes = planned.size_bytes
        self.rounds = 0
        self.sent_s = 0.0
        self.done_s = 0.0
        self.expected_s = self.at_most_s = math.inf
        self._recent: deque[float] = deque(maxlen=_ROUNDS_KEPT)
        self.summed: Any = None
        self.runs: Runs | None = None

    def cut(self, runs: Runs) -> Runs:
        """Return the parts of a group's runs that are in this segment."""
        assert isinstance(self.tensor, torch.Tensor)
        first = self.offset_bytes // self.tensor.element_size()
        return runs.cut(first, first + self.tensor.numel())

    def note(self, busy_s: float) -> None:
        """Record how many seconds the network was busy with it."""
        self._recent.append(busy_s)
        recent = sorted(self._recent)
        self.expected_s, self.at_most_s = recent[:2][-1], recent[-2:][0]


def sends_of(
    plan: SendPlan, tensors: Sequence[SegmentMemory], name: str
) -> tuple[list[GroupSend], list[SegmentSend]]:
    """Return a plan's groups, and its segments in planned order with the tensors that are sent."""
    sends = [
        GroupSend(number, second_half=group.exchange == "all-gather")
        for number, group in enumerate(plan.groups)
    ]
    by_tail = sorted(zip(plan.groups, sends, strict=True), key=lambda p: (-p[0].tail_s, p[0].ready_s))
    for rank, (_, send) in enumerate(by_tail):
        send.rank = rank
    segments = [
        SegmentSend(
            number,
            sends[planned.group],
            tensor,
            f"{name}.{planned.group}.{planned.offset_bytes}",
            planned,
        )
        for number, (planned, tensor) in enumerate(zip(plan.segments, tensors, strict=True))
    ]
    for segment in segments:
        segment.group.segments.append(segment)
    return sends, segments


def last_times(
    sends: Sequence[GroupSend], groups: Sequence[PlannedGroup]
) -> tuple[tuple[GroupTimes, ...], tuple[SegmentTimes, ...]]:
    """Return when each group and segment was last submitted, sent and done."""
    start = min((send.submitted_s for send in sends), default=0.0)
    group_times = tuple(
        GroupTimes(
            group=send.number,
            gradients=group.gradients,
            size_bytes=group.size_bytes,
            submitted_s=send.submitted_s - start,
            sent_s=send.sent_s - start,
            done_s=send.done_s - start,
            waited_s=send.waited_s,
        )
        for send, group in zip(sends, groups, strict=True)
    )
    segment_times = tuple(
        SegmentTimes(
            group=send.number,
            offset_bytes=segment.offset_bytes,
            size_bytes=segment.size_bytes,
            sent_s=segment.sent_s - start,
            done_s=segment.done_s - start,
        )
        for send in sends
        for segment in send.segments
    )
    return group_times, segment_times
