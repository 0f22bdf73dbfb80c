"""Steps of one trace that can be compared op by op.

On a clock of whole microseconds tiny ops fall in and out of the ones before them. There a step with the same
gradients is brought to the form of the others: an op that it alone has counts for the op before, as it
does for the clock.
"""

from collections import Counter
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

from pace.formats.kineto_records import ROUNDING_S, KinetoStep, RecordedOp
from pace.formats.kineto_trace import KinetoTrace
from pace.formats.reading import warn

_MOST_DIFFERENT = 0.1


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


def _reshaped(step: KinetoStep, reference: KinetoStep) -> KinetoStep | None:
    forward = _like(step.forward, reference.forward)
    backward = _like(step.backward, reference.backward)
    if forward is None or backward is None:
        return None
    same = replace(step, forward=forward, backward=backward, gradients=reference.gradients)
    return same if same.signature == reference.signature else None


def _like(ops: list[RecordedOp], reference: list[RecordedOp]) -> list[RecordedOp] | None:
    names, wanted = _names(ops), _names(reference)
    different = 0
    result: list[RecordedOp] = []
    matcher = SequenceMatcher(None, names, wanted, autojunk=False)
    for kind, first, last, wanted_first, wanted_last in matcher.get_opcodes():
        if kind == "equal":
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
            if result:
                _add(result, extra)
        for missing in reference[wanted_first:wanted_last]:
            nothing = replace(missing.op, start_s=moment, end_s=moment)
            result.append(RecordedOp(nothing, moment, forward=missing.forward))
    return result if different <= max(_MOST_DIFFERENT * len(reference), 2) else None


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
