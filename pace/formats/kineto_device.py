"""Which operator of which step launched each kernel of a Kineto trace, and what belongs to none.

The call that launched a kernel carries its `correlation`; the operator is the one around that call. Only
a kernel without a recorded call is joined by `External id`, and only if that id is an operator's: older
profilers write the correlation there. Work below the first recorded correlation was launched before
recording began, by operators that the trace does not hold.
"""

import bisect
from dataclasses import dataclass, field

from pace.errors import FormatError
from pace.formats.kineto_records import COMMUNICATION, UPDATE, KinetoStep, Outermost, RecordedOp
from pace.formats.kineto_trace import DeviceWork, HostOp, KinetoTrace, Thread
from pace.formats.reading import warn

# A kernel that starts before its launch by more than the clocks may differ has another's id.
CLOCKS_APART_S = 1e-3


@dataclass(slots=True, kw_only=True)
class PlacedKernel:
    """Compute on the device; `op` is what it counts for, or None: the update of `step` or nothing."""

    start_s: float
    end_s: float
    launch_s: float | None
    step: int | None
    op: RecordedOp | None
    is_copy: bool = False


@dataclass(slots=True, kw_only=True)
class PlacedWork:
    """The device's compute in order, and what was dropped.

    Attributes
    ----------
    early, early_s
        Kernels launched before recording began, and their time.
    lost_s
        Time of kernels within the steps that belong to no operator.
    between_s
        The part of it that was launched on the host between operators.
    """

    kernels: list[PlacedKernel] = field(default_factory=list)
    early: int = 0
    early_s: float = 0.0
    lost_s: float = 0.0
    between_s: float = 0.0


def place_device_work(
    trace: KinetoTrace,
    outermost: dict[Thread, Outermost],
    taken: dict[int, RecordedOp],
    steps: list[KinetoStep],
) -> PlacedWork:
    """Give the device's compute to the operators that launched it.

    Raises
    ------
    FormatError
        If more than 10 % of the device's time within the steps belongs to no operator.
    """
    placed = PlacedWork()
    by_external = _trusted_ids(trace)
    updates = [note for note in trace.annotations if note.name.startswith(UPDATE)]
    update_starts = [note.start_s for note in updates]
    begin, finish = steps[0].start_s, steps[-1].end_s
    total = 0.0
    for work in sorted(trace.work, key=lambda work: work.start_s):
        if work.collective is not None:
            continue
        end = work.start_s + work.duration_s
        moment = _launch(trace, work, by_external)
        if moment is None:
            placed.kernels.append(
                PlacedKernel(start_s=work.start_s, end_s=end, launch_s=None, step=None, op=None)
            )
            if trace.launched_before(work):
                placed.early += 1
                placed.early_s += work.duration_s
            elif begin <= work.start_s < finish:
                total += work.duration_s
                placed.lost_s += work.duration_s
            continue
        thread, launch = moment
        number = bisect.bisect_right(steps, launch, key=lambda step: step.start_s) - 1
        inside = number >= 0 and launch < steps[number].end_s
        lane = outermost.get(thread)
        around = None if lane is None else lane.around(launch)
        kernel = PlacedKernel(
            start_s=work.start_s, end_s=end, launch_s=launch, step=number if inside else None, op=None
        )
        placed.kernels.append(kernel)
        recorded = None if around is None else taken.get(id(around))
        if recorded is not None:
            total += work.duration_s
            kernel.op = recorded
            recorded.device_s[work.stream] = recorded.device_s.get(work.stream, 0.0) + work.duration_s
            recorded.device_start_s = min(recorded.device_start_s, work.start_s)
            recorded.device_end_s = max(recorded.device_end_s, end)
        elif inside:
            total += work.duration_s
            place = bisect.bisect_right(update_starts, launch) - 1
            if around is not None and (COMMUNICATION.match(around.name) or around.name == "aten::copy_"):
                kernel.is_copy = True
                steps[number].copies += 1
                steps[number].copies_s += work.duration_s
            elif around is None and place >= 0 and launch < updates[place].end_s:
                steps[number].update_work_s += work.duration_s
            elif around is None:
                placed.lost_s += work.duration_s
                placed.between_s += work.duration_s
    if placed.lost_s > 0.1 * total:
        why = "ids are missing"
        if 2 * placed.between_s > placed.lost_s:
            why = (
                "it was launched between operators, as by an extension or a Triton kernel that Python calls"
                " itself. Register such calls by torch.library.custom_op, and record again"
            )
        raise FormatError(
            trace.path, f"{placed.lost_s / total:.0%} of the device's time belongs to no operator: {why}"
        )
    if placed.lost_s > 0.01 * total:
        share = placed.lost_s / total
        warn(trace.path, f"{share:.1%} of the device's time belongs to no operator and was left out")
    return placed


def _trusted_ids(trace: KinetoTrace) -> dict[int, HostOp]:
    """Return operators by `External id`; none where that of a kernel is its correlation."""
    if not any(work.external is not None and work.external != work.correlation for work in trace.work):
        return {}
    return {op.external: op for op in trace.ops if op.external is not None}


def _launch(
    trace: KinetoTrace, work: DeviceWork, by_external: dict[int, HostOp]
) -> tuple[Thread, float] | None:
    launch = None if work.correlation is None else trace.launches.get(work.correlation)
    if launch is not None and launch[1] <= work.start_s + CLOCKS_APART_S:
        return launch
    op = None if work.external is None else by_external.get(work.external)
    return None if op is None or op.start_s > work.start_s + CLOCKS_APART_S else (op.thread, op.start_s)
