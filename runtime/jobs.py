"""What the engine keeps of a round: every group's progress, and every segment's last times."""

import math
import threading

import torch

from pace.runtime.plan import PlannedSegment


class Job:
    """One group's progress through a round."""

    __slots__ = (
        "computed",
        "done",
        "done_s",
        "number",
        "rank",
        "remaining",
        "rounds",
        "segments",
        "sent_s",
        "submitted",
        "submitted_s",
        "unsent",
        "waited_s",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.rank = number
        self.segments: list[Segment] = []
        self.done = threading.Event()
        self.submitted = False
        self.unsent = 0
        self.remaining = 0
        self.submitted_s = 0.0
        self.sent_s = 0.0
        self.done_s = 0.0
        self.rounds = 0
        self.computed: torch.cuda.Event | None = None
        self.waited_s = 0.0

    def following(self) -> "Segment":
        """The first of its segments that is not sent yet this round."""
        return self.segments[len(self.segments) - self.unsent]


class Segment:
    """One all-reduce call."""

    __slots__ = (
        "done_s",
        "job",
        "name",
        "number",
        "offset_bytes",
        "rounds",
        "sent_s",
        "shortest_s",
        "size_bytes",
        "tensor",
    )

    def __init__(
        self, number: int, job: Job, tensor: torch.Tensor, name: str, planned: PlannedSegment
    ) -> None:
        self.number = number
        self.offset_bytes = planned.offset_bytes
        self.job = job
        self.tensor = tensor
        self.name = name
        self.size_bytes = planned.size_bytes
        self.rounds = 0
        self.sent_s = 0.0
        self.done_s = 0.0
        self.shortest_s = math.inf
