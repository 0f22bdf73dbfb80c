"""The report of a wrapper: what it is doing, the times of the last round, and its window as a chart."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pace.runtime.engine.plan import SendPlan

if TYPE_CHECKING:
    from pace.view.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTimes:
    """One group's last round. Times are in seconds from the round's first submission.

    Attributes
    ----------
    submitted_s, sent_s, done_s
        When it was submitted, when its first segment was sent, and when it was summed.
    waited_s
        How long training waited for it, in seconds.
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
    """When one segment of the last round was sent and summed; seconds from the round's first submission."""

    group: int
    offset_bytes: int
    size_bytes: int
    sent_s: float
    done_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What was sent and waited for since the start, over all plans; waits are in seconds."""

    sent_segments: int = 0
    sent_bytes: int = 0
    waited_s: float = 0.0
    read_wait_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a wrapper is doing, and measured against predicted times.

    Attributes
    ----------
    mode
        The current mode: "barrier", "overlap" or "plain" (buckets in order of readiness, then a barrier; only
        if ``mode="auto"`` tries or chose it).
    order
        What chooses the next segment: "static" (the plan), "adaptive" or "priority" (rank 0, during
        training).
    source
        Where the plan comes from: "schedule", "local" or "plain".
    rounds
        Number of steps taken.
    iteration_s
        Median time of the latest steps, in seconds; None before the second step.
    predicted_iteration_s
        The iteration time that the schedule predicts, in seconds; None without a schedule.
    trial_s
        The iteration time of each mode, in seconds, as ``mode="auto"`` measured it on the slowest rank; empty
        before the trial has ended.
    sent_segments, sent_bytes, waited_s
        Totals since the start, over all plans; ``pace.runtime.metrics`` exports them.
    read_wait_s
        How long reads of gradients before ``step()`` have waited for sums, in seconds, in total. This is the
        cost of clipping by the global norm.
    groups, segments
        Times of the last complete round.
    replanning
        The state of replanning: "none", "watching" (comparing iteration times), "profiling", "submitting"
        (waiting until the service has scheduled a profile) or "asking" (asking the service for a schedule).
    profiles
        Number of profiles that this job has made of itself.
    drift
        Iteration time relative to the first iterations under the schedule, on the slowest rank: 1.3 is 30 %
        slower. None before there are iterations to compare.
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
    """Return the last round as a window: its groups, and when their segments were in flight."""
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
