"""What happened: numbers of the last round for people, and its window."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pace.runtime.engine.plan import SendPlan

if TYPE_CHECKING:
    from pace.view.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTimes:
    """One group's last round; times in seconds from the round's first submission.

    Attributes
    ----------
    waited_s
        How long training waited for it.
    """

    group: int
    gradients: tuple[str, ...]
    size_bytes: int
    submitted_s: float
    sent_s: float
    done_s: float
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTimes:
    """When one segment of the last round was on its way, in seconds from the round's first submission."""

    group: int
    offset_bytes: int
    size_bytes: int
    sent_s: float
    done_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What has been sent and waited for since the start, over all plans."""

    sent_segments: int = 0
    sent_bytes: int = 0
    waited_s: float = 0.0
    read_wait_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a wrapper is doing and how it compares.

    Attributes
    ----------
    mode
        How it runs now: "plain" (buckets in order of readiness, then a barrier; only where ``mode="auto"``
        tries or chose it), "barrier" or "overlap".
    order
        Who chooses the next segment: "static" (the plan), "adaptive" or "priority" (rank 0 while it runs).
    source
        Where the plan came from.
    rounds
        Steps taken so far.
    iteration_s
        Median over the latest steps; None before the second.
    predicted_iteration_s
        What the schedule promised; None without one.
    trial_s
        What ``mode="auto"`` measured for each way of running, on the slowest rank; empty until it has.
    sent_segments, sent_bytes, waited_s
        Totals since the start, over all plans; ``pace.runtime.metrics`` exports them.
    read_wait_s
        How long loops that read gradients before ``step()`` have waited for all sums in these reads, in all:
        what clipping by the global norm costs.
    groups, segments
        The last complete round.
    replanning
        What is done about the plan: "none"; "watching" how the schedule does; "profiling"; "submitting" a
        profile, until the service has scheduled it; "asking" the service for a schedule.
    profiles
        How many profiles this job has made of itself.
    drift
        How iterations compare with those at first under the schedule, on the slowest rank: 1.3 is 30 %
        slower. None before there is anything to compare.
    """

    mode: str
    order: str
    source: str
    rounds: int
    iteration_s: float | None
    predicted_iteration_s: float | None
    trial_s: dict[str, float]
    sent_segments: int
    sent_bytes: int
    waited_s: float
    groups: tuple[GroupTimes, ...]
    segments: tuple[SegmentTimes, ...]
    replanning: str = "none"
    profiles: int = 0
    drift: float | None = None
    read_wait_s: float = 0.0


def lay_out_round(report: Report, plan: SendPlan, *, name: str) -> "Window":
    """Lay out the last round: its groups, and when their segments were on the network."""
    from pace.view.window import Cargo, Window, WindowTransfer

    submitted_s = {group.group: group.submitted_s for group in report.groups}
    return Window(
        name=f"measured: {name}",
        iteration_s=max((segment.done_s for segment in report.segments), default=0.0),
        barrier=False,
        links=("network",),
        cargo=tuple(
            Cargo(
                name=f"group {number}",
                gradients=group.gradients,
                size_bytes=group.size_bytes,
                ready_s=submitted_s.get(number),
            )
            for number, group in enumerate(plan.groups)
        ),
        transfers=tuple(
            WindowTransfer(
                link=0,
                cargo=segment.group,
                size_bytes=segment.size_bytes,
                start_s=segment.sent_s,
                end_s=segment.done_s,
                offset_bytes=segment.offset_bytes,
            )
            for segment in report.segments
        ),
    )
