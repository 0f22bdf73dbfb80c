"""What the workers of a prediction are like, where they differ from the one that was recorded."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pace.documents.base import Document
from pace.documents.steps import Rate
from pace.errors import InvalidOptions

Speed = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Moment = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
PerWorker = Annotated[int, Field(ge=1, le=1_000_000)]


class Fleet(Document):
    """How workers that share servers differ from the recorded one.

    Worker i takes entry i of a list, modulo the list's length. An empty list keeps the recorded values.

    Attributes
    ----------
    speed
        Speed of each worker's compute, relative to the recorded worker.
    download_bytes_per_s, upload_bytes_per_s
        Rates of the workers' links; the recorded link's by default.
    server_bytes_per_s
        Rates of the servers' links, each way; server i takes entry i, modulo the length.
    join_s, leave_s
        Times at which workers start and stop; None for never. A worker that leaves stops in the middle of its
        step.
    pull_every, push_every
        Number of steps from one pull to the next, and from one push to the next. A worker pulls in the first
        step of such a period, and pushes in the last.
    barrier
        "none": workers do not wait. "all": a step starts when every worker has ended the step before.
        "quorum": a round ends when `quorum` steps have ended, and workers that ended a step wait for this.
        "staleness": no worker is more than `max_ahead` steps ahead of the slowest.
    late
        What happens to a step that ends after its round: "count" it for the current round, or "drop" it.
    """

    refused_as = InvalidOptions

    speed: tuple[Speed, ...] = ()
    download_bytes_per_s: tuple[Rate, ...] = ()
    upload_bytes_per_s: tuple[Rate, ...] = ()
    server_bytes_per_s: tuple[Rate, ...] = ()
    join_s: tuple[Moment, ...] = ()
    leave_s: tuple[Moment | None, ...] = ()
    pull_every: PerWorker = 1
    push_every: PerWorker = 1
    barrier: Literal["none", "all", "quorum", "staleness"] = "none"
    quorum: PerWorker | None = None
    max_ahead: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    late: Literal["count", "drop"] = "count"

    @model_validator(mode="after")
    def _what_its_barrier_needs(self) -> Self:
        for barrier, field in (("quorum", self.quorum), ("staleness", self.max_ahead)):
            name = "quorum" if barrier == "quorum" else "max_ahead"
            if self.barrier == barrier and field is None:
                raise ValueError(f'barrier "{barrier}" needs {name}')
            if self.barrier != barrier and field is not None:
                raise ValueError(f'{name} is given, but barrier "{self.barrier}" does not use it')
        if self.late == "drop" and self.barrier != "quorum":
            raise ValueError(f'late "drop" needs barrier "quorum": with "{self.barrier}" no step is late')
        if self.join_s and self.leave_s:
            for at in range(max(len(self.join_s), len(self.leave_s))):
                leave = self.leave_s[at % len(self.leave_s)]
                if leave is not None and leave <= self.join_s[at % len(self.join_s)]:
                    raise ValueError(f"worker {at} leaves at {leave} s, before it joins")
        return self

    @property
    def is_uniform(self) -> bool:
        """Whether all workers do the same, so that each of them can be given the same number of steps."""
        lists = (self.speed, self.download_bytes_per_s, self.upload_bytes_per_s, self.join_s, self.leave_s)
        return (
            self.barrier != "quorum"
            and all(len(set(values)) <= 1 for values in lists)
            and not any(moment is not None for moment in self.leave_s)
        )
