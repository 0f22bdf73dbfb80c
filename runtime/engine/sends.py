"""What the engine keeps of a round: every group's progress, and every segment's last times."""

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
        Whether it gathers what others have summed.
    submitted
        Whether it may be sent and has something left to send.
    sent
        Set while the transport was given all of it; used where tensors lie on a device.
    done
        Set while nothing of it is left to send or under way.
    device_waits
        From which moment to which the device waited for it in the last round.
    """

    __slots__ = (
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
        self.device_waits: list[tuple[Any, Any]] = []

    def following(self) -> "SegmentSend":
        """The first of its segments that is not sent yet this round."""
        return self.segments[len(self.segments) - self.unsent]

    def give_runs(self, runs: Runs | None) -> None:
        """Note of which elements its segments consist in this round; None for all."""
        for segment in self.segments:
            segment.runs = None if runs is None else segment.cut(runs)


SegmentMemory = torch.Tensor | tuple[torch.Tensor, ...]
"""What a segment sends: a contiguous tensor, or for one of two halves matrices with a row for every rank."""


class SegmentSend:
    """One call of the transport.

    Attributes
    ----------
    expected_s
        How long the network will be busy with it when all ranks are there: as long as in the second shortest
        of the last rounds. Longer ones waited for a rank. The shortest may be a mistake: where the end of
        the segment before was noticed late, this one seems to have taken no time at all.
    at_most_s
        How long the network will be busy with it at most: as long as in the second longest of the last
        rounds. Where compute slows the network down, that is much longer than `expected_s`.
    summed
        The moment at which the device has the sum, where the transport knows it beforehand.
    runs
        The elements outside of which all are zero in this round; None where all may be something else.
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
        """Return a group's runs as far as they are in this segment."""
        assert isinstance(self.tensor, torch.Tensor)
        first = self.offset_bytes // self.tensor.element_size()
        return runs.cut(first, first + self.tensor.numel())

    def note(self, busy_s: float) -> None:
        """Record how long the network was busy with it."""
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
    """Return when each group and segment was last handed over, sent and done."""
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
