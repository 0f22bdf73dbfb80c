"""Steps of one trace that can be compared op by op.

On a clock of whole microseconds tiny ops fall in and out of the ones before them. There a step with the same
gradients is brought to the form of the others: an op that it alone has counts for the op before, as it
does for the clock.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

from pace.errors import FormatError
from pace.formats.kineto_records import ROUNDING_S, UPDATE, FixedCall, KinetoStep, Part, RecordedOp
from pace.formats.kineto_trace import KinetoTrace
from pace.formats.reading import warn
from pace.formats.recorded_collectives import RecordedCall

_MOST_DIFFERENT = 0.1
_FEW = 1 / 3  # of the steps may lack an update, which loss scaling skips now and then


def comparable_steps(trace: KinetoTrace, steps: list[KinetoStep]) -> list[KinetoStep]:
    """Return the steps of the most common form; a warning counts the others.

    Of equally common forms the last one is the least likely to be warm-up.
    """
    counts = Counter(step.signature for step in steps)
    most = max(counts.values())
    reference = next(step for step in reversed(steps) if counts[step.signature] == most)
    kept = []
    for step in steps:
        same = step if step.signature == reference.signature else None
        if same is None and trace.rounded:
            same = _reshaped(step, reference)
        if same is not None:
            kept.append(same)
    if len(kept) < len(steps):
        warn(
            trace.path,
            f"{len(steps) - len(kept)} of {len(steps)} steps ran other operators and were left out",
        )
    return kept


def refuse_unequal_steps(
    trace: KinetoTrace, steps: Sequence[KinetoStep], calls: Sequence[RecordedCall]
) -> None:
    """Refuse a trace of whose steps only some send or update: none of them says what an update takes.

    Raises
    ------
    FormatError
        If all-reduces or updates are missing in some of the steps and not in others.
    """
    count = len(steps)
    sends = _with_one(steps, [call.issued_s for call in calls])
    updates = _with_one(steps, [note.start_s for note in trace.annotations if note.name.startswith(UPDATE)])
    silent = sum(not sent and not step.reduced_after for sent, step in zip(sends, steps, strict=True))
    idle = updates.count(False)
    if 0 < silent < count and not idle:
        reason = (
            f"{silent} of {count} steps update without an all-reduce, as local SGD does: give a trace "
            "in which every step sums gradients. For streaming DiLoCo, see `pace diloco`"
        )
        raise FormatError(trace.path, reason)
    for lacking, number, few in (("all-reduce", silent, 0.0), ("update", idle, _FEW)):
        if few * count < number < count:
            reason = (
                f"{number} of {count} steps have no {lacking}, so they are parts of steps: call "
                "profiler.step() once for each optimizer.step(), and record again"
            )
            raise FormatError(trace.path, reason)


def _with_one(steps: Sequence[KinetoStep], times_s: Sequence[float]) -> list[bool]:
    """Return, for each step, whether one of the moments is in it."""
    times = sorted(times_s)
    return [bisect_left(times, step.start_s) < bisect_left(times, step.end_s) for step in steps]


def _reshaped(step: KinetoStep, reference: KinetoStep) -> KinetoStep | None:
    forward = _like(step.forward, reference.forward)
    backward = _like(step.backward, reference.backward)
    if forward is None or backward is None:
        return None
    places: dict[Part, list[int]] = {"forward": forward[1], "backward": backward[1]}
    same = replace(
        step,
        forward=forward[0],
        backward=backward[0],
        gradients=reference.gradients,
        segments=reference.segments,
        fixed=[_moved(call, places, len(backward[0])) for call in step.fixed],
    )
    return same if same.signature == reference.signature else None


def _moved(call: FixedCall, places: Mapping[Part, Sequence[int]], num_backward: int) -> FixedCall:
    """Return a collective between the ops as they are now: before what follows an op that is taken off."""
    own = places["forward" if call.part == "forward" else "backward"]
    after, before = call.after, call.before
    if after is not None:
        # An op that is taken off counts for the one before.
        after = own[after] - 1 if own[after] == own[after + 1] else own[after]
        after = None if after < 0 else after
    if before is not None:
        before = (before[0], places[before[0]][before[1]])
        if before == ("backward", num_backward):
            before = ("forward", 0)
        elif before[0] == "forward" and before[1] == places["forward"][-1]:
            before = None
    return replace(call, after=after, before=before)


def _like(ops: list[RecordedOp], reference: list[RecordedOp]) -> tuple[list[RecordedOp], list[int]] | None:
    """Return the ops in the form of the reference, and the place that each has in it, or the next one has.

    The last of the places is their number.
    """
    names, wanted = _names(ops), _names(reference)
    different = 0
    result: list[RecordedOp] = []
    places: list[int] = []
    matcher = SequenceMatcher(None, names, wanted, autojunk=False)
    for kind, first, last, wanted_first, wanted_last in matcher.get_opcodes():
        if kind == "equal":
            places += range(len(result), len(result) + last - first)
            result += ops[first:last]
            continue
        different += max(last - first, wanted_last - wanted_first)
        if any(op.gradients for op in (*ops[first:last], *reference[wanted_first:wanted_last])):
            return None
        tiny = (*ops[first:last], *reference[wanted_first:wanted_last])
        if any(op.op.end_s - op.op.start_s > 2 * ROUNDING_S for op in tiny):
            return None
        moment = result[-1].host_end_s if result else ops[0].op.start_s
        for extra in ops[first:last]:
            places.append(len(result))
            if result:
                _add(result, extra)
        for missing in reference[wanted_first:wanted_last]:
            nothing = replace(missing.op, start_s=moment, end_s=moment)
            result.append(RecordedOp(nothing, moment, forward=missing.forward))
    places.append(len(result))
    return (result, places) if different <= max(_MOST_DIFFERENT * len(reference), 2) else None


def _add(result: list[RecordedOp], extra: RecordedOp) -> None:
    before = result[-1]
    device = dict(before.device_s)
    for stream, seconds in extra.device_s.items():
        device[stream] = device.get(stream, 0.0) + seconds
    result[-1] = replace(
        before,
        host_end_s=extra.host_end_s,
        device_s=device,
        device_start_s=min(before.device_start_s, extra.device_start_s),
        device_end_s=max(before.device_end_s, extra.device_end_s),
        communication_s=before.communication_s + extra.communication_s,
        lasting_s=before.lasting_s + extra.lasting_s,
    )


def _names(ops: list[RecordedOp]) -> list[Any]:
    return [(op.name, op.gradients) for op in ops]
