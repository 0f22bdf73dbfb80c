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
        Times at which it was submitted, its first segment was sent, and it was summed.
    waited_s
        Time that training waited for it, in seconds.
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
    """Totals of sends and waits since the start, over all plans; waits are in seconds."""

    sent_segments: int = 0
    sent_bytes: int = 0
    waited_s: float = 0.0
    read_wait_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """State of a wrapper, and its measured and predicted times.

    Attributes
    ----------
    mode
        The current mode: "barrier", "overlap", "check" or "plain" (buckets in order of readiness, then a
        barrier; only if ``mode="auto"`` tries or chose it).
    order
        Order of segments: "static" (the plan's), "overtake" (the plan's first ready one), or "adaptive" and
        "priority" (rank 0 chooses during training).
    source
        Source of the plan: "schedule", "local" (the job's own groups) or "plain" (plain operation).
    has_schedule
        Whether there is a schedule. If `source` is "plain" all the same, the trial of ``mode="auto"`` has not
        ended, or found plain operation faster.
    rounds
        Number of steps taken.
    iteration_s
        Median time of the latest steps, in seconds; None before the second step.
    predicted_iteration_s
        Iteration time that the schedule predicts, in seconds; None without a schedule.
    trial_s
        Iteration time of each mode in the trial of ``mode="auto"``, on the slowest rank, in seconds; empty
        before the trial has ended.
    sent_segments, sent_bytes, waited_s
        Totals since the start, over all plans; ``pace.runtime.metrics`` exports them.
    read_wait_s
        Total time that reads of gradients before ``step()`` waited for sums, in seconds. This is the cost of
        clipping by the global norm.
    groups, segments
        Times of the last complete round.
    replanning
        State of replanning: "none", "watching" (comparing iteration times), "profiling", "submitting"
        (waiting until the service has scheduled a profile) or "asking" (asking the service for a schedule).
    profiles
        Number of profiles that this job has made of itself.
    drift
        Iteration time relative to the first iterations under the schedule, on the slowest rank: 1.3 is 30 %
        slower. None before there are iterations to compare.
    checked_steps
        Number of steps in which ``mode="check"`` found no use of a pending parameter; otherwise 0.
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
    checked_steps: int = 0
    has_schedule: bool = False


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
