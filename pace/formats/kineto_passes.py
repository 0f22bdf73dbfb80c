"""The backward passes of a recorded step: more than one under gradient accumulation.

A backward pass ends where an op is differentiated that ran forward after the pass had begun. Operators that
run again inside a backward op, as under checkpointing, are no forward ops of their own.

Where nothing marks the steps of a trace, a step begins behind the update before the first backward pass that
does not add to the gradients of the one before.
"""

import bisect
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import attrgetter

from pace.errors import FormatError
from pace.formats.kineto_records import ACCUMULATE, BACKWARD, COMMUNICATION
from pace.formats.kineto_trace import HostOp

_ADD = ("aten::add", "aten::add_")
_ZERO = ("aten::zero_", "aten::fill_", "aten::zeros_like")
_OF_ALL = ("aten::_foreach_", "aten::_fused_")
_VIEWS = ("aten::as_strided", "aten::detach", "aten::view")
_MOST_DIFFERENT = 1 / 3  # of the updates may run other ops, such as those that make buffers
_MARK = "and nothing marks the steps: call profiler.step() after each, and record again"


def made_at(ops: Sequence[HostOp], outermost: Sequence[HostOp]) -> dict[int, float]:
    """Return when the forward op of each sequence number began; both lists are of the main thread."""
    starts = [op.start_s for op in outermost]
    made: dict[int, float] = {}
    for op in ops:
        if op.sequence is None:
            continue
        place = bisect.bisect_right(starts, op.start_s) - 1
        if place >= 0 and not outermost[place].name.startswith(BACKWARD):
            made[op.sequence] = starts[place]
    return made


def pass_starts(backward: Sequence[HostOp], made: Mapping[int, float]) -> list[int]:
    """Return the place of the first op of each backward pass, 0 for the first one."""
    edges = [0]
    for place, op in enumerate(backward[1:], start=1):
        numbers = (op.sequence, op.fallback_sequence)
        moments = [made[number] for number in numbers if number is not None and number in made]
        if moments and max(moments) > backward[edges[-1]].start_s:
            edges.append(place)
    return edges


def accumulates(backward: Sequence[HostOp], edges: Sequence[int], accumulated: Sequence[HostOp]) -> bool:
    """Return whether every pass added to the same gradients, told by their shapes: micro-batches.

    Parameters
    ----------
    accumulated
        The ops that added to gradients, sorted.
    """
    bounds = [*edges, len(backward)]
    counts = {
        sum(op.name == BACKWARD + ACCUMULATE for op in backward[first:last])
        for first, last in pairwise(bounds)
    }
    shapes = _shapes(backward, edges, accumulated)
    same = all(each == shapes[0] for each in shapes)
    return len(edges) > 1 and len(counts) == 1 and 0 not in counts and same


def num_models(
    backward: Sequence[HostOp],
    edges: Sequence[int],
    accumulated: Sequence[HostOp],
    issued_s: Sequence[float],
) -> int:
    """Return how many passes sent gradients of other shapes than those before: of models of their own.

    Parameters
    ----------
    accumulated, issued_s
        The ops that added to gradients, sorted, and when all-reduces were issued.
    """
    starts_s = [*(backward[edge].start_s for edge in edges), math.inf]
    sent = [
        frozenset(shapes.items())
        for shapes, (first, last) in zip(
            _shapes(backward, edges, accumulated), pairwise(starts_s), strict=True
        )
        if shapes and any(first <= moment < last for moment in issued_s)
    ]
    return max(len(set(sent)), 1)


def _shapes(
    backward: Sequence[HostOp], edges: Sequence[int], accumulated: Sequence[HostOp]
) -> list[Counter[tuple[int, ...] | None]]:
    """Return for each pass how many gradients of each shape were added to."""
    starts_s = [*(backward[edge].start_s for edge in edges), math.inf]
    return [
        Counter(op.shape for op in accumulated if first <= op.start_s < last)
        for first, last in pairwise(starts_s)
    ]


def segments_between(forward: Sequence[HostOp], starts_s: Sequence[float]) -> list[list[int]]:
    """Return the places of the ops that ran forward before each backward pass."""
    segments: list[list[int]] = [[] for _ in starts_s]
    for place, op in enumerate(forward):
        if not op.name.startswith(BACKWARD):
            at = bisect.bisect_right(starts_s, op.start_s)
            if at < len(segments):
                segments[at].append(place)
    return segments


def unmarked_steps(
    path: str,
    ops: list[HostOp],
    notes: list[HostOp],
    backward: list[HostOp],
    main: list[HostOp],
) -> list[float]:
    """Return when all steps but the first begin in a trace in which nothing marks them.

    Parameters
    ----------
    ops, notes
        All operators and annotations, sorted.
    backward, main
        The outermost backward ops, and the outermost ops of the main thread, sorted.

    Raises
    ------
    FormatError
        If the passes are of different gradients, or what runs between them does not repeat.
    """
    made = made_at([op for op in ops if main and op.thread == main[0].thread], main)
    places = [*pass_starts(backward, made), len(backward)]
    passes = [backward[first:last] for first, last in pairwise(places)]
    accumulated = [op for op in ops if op.name == ACCUMULATE]
    gradients = [ops_between(accumulated, each[0].start_s, _end_s(each)) for each in passes]
    # A trace may begin between a forward pass and its backward pass.
    whole = gradients if any(op.sequence in made for op in passes[0]) else gradients[1:]
    require_same_gradients(path, [[op.size_bytes for op in each] for each in whole])
    adds = [op for op in ops if op.name in _ADD]
    first = _before_forward(ops_between(main, ops[0].start_s, backward[0].start_s), notes, passes[0], made)
    lead = [op.name for op in first] if not any(map(_may_update, first)) else None
    edges: list[float] = []
    updates: list[tuple[str, ...]] = []
    for (before, after), own in zip(pairwise(passes), gradients[1:], strict=True):
        ended, begun = _end_s(before), after[0].start_s
        marks = ops_between(notes, ended, begun)
        idle = [op for op in ops_between(main, ended, begun) if not op.name.startswith(BACKWARD)]
        gap = _before_forward(idle, marks, after, made)
        changes = [op for op in gap if _may_update(op)]
        adding = sum(
            any(add.thread == op.thread for add in ops_between(adds, op.start_s, op.end_s)) for op in own
        )
        zeroed = any(note.name.startswith("Optimizer.zero_grad") for note in marks) or _zeroes(idle, len(own))
        if own and (2 * adding <= len(own) or zeroed):
            behind = [op for op in gap if op.sequence is None or op in changes]
            if (
                lead is not None and [op.name for op in gap[len(gap) - len(lead) :]] == lead
            ):  # the rest is an update in any case
                behind = gap[: len(gap) - len(lead)]
            edges.append(max((op.end_s for op in behind), default=ended))
            updates.append(tuple(op.name for op in changes))
        elif own and (len(changes) >= len(own) or any(op.name.startswith(_OF_ALL) for op in changes)):
            raise FormatError(path, f"gradients are updated and never reset, {_MARK}")
    usual = max(Counter(updates).values(), default=0)
    if len(updates) - usual > max(_MOST_DIFFERENT * len(updates), 1):
        raise FormatError(path, f"{len(passes)} backward passes have different updates between them, {_MARK}")
    return edges


def require_same_gradients(path: str, sizes_bytes: Sequence[Sequence[int | None]]) -> None:
    """Refuse steps without marks that are of different gradients: of two models, as in a GAN.

    Raises
    ------
    FormatError
        With the numbers of gradients.
    """
    forms = Counter(map(tuple, sizes_bytes))
    if len(forms) > 1:
        told = " and ".join(f"{count} of {len(form)} gradients" for form, count in forms.most_common(3))
        raise FormatError(
            path, f"backward passes are of different gradients ({told}), as of several models, {_MARK}"
        )


def _before_forward(
    ops: Sequence[HostOp], notes: Sequence[HostOp], backward: Sequence[HostOp], made: Mapping[int, float]
) -> list[HostOp]:
    """Return those of a step's ops that end before what its backward pass differentiates."""
    numbers = {op.sequence for op in backward if op.sequence is not None}
    since = min((op.start_s for op in ops), default=0.0)
    moments = [made[number] for number in numbers if number in made and made[number] >= since]
    moments += [note.start_s for note in notes if note.name.startswith("DistributedDataParallel.forward")]
    return [op for op in ops if op.end_s <= min(moments, default=backward[0].start_s)]


def _may_update(op: HostOp) -> bool:
    """Return whether an op between two passes may be an update: it changes a tensor, or needs no gradient."""
    if op.name.endswith("_") or op.name.startswith(_OF_ALL):
        return True
    return op.sequence is None and op.name not in _VIEWS and not COMMUNICATION.match(op.name)


def _zeroes(ops: Sequence[HostOp], num_gradients: int) -> bool:
    names = Counter(op.name for op in ops)
    return sum(names[name] for name in _ZERO) >= num_gradients or names["aten::_foreach_zero_"] > 0


def _end_s(ops: Sequence[HostOp]) -> float:
    return max(op.end_s for op in ops)


def ops_between(ops: list[HostOp], start_s: float, end_s: float) -> list[HostOp]:
    """Return the ops that start from one moment on and before another, of ops that are sorted."""
    key = attrgetter("start_s")
    return ops[bisect.bisect_left(ops, start_s, key=key) : bisect.bisect_left(ops, end_s, key=key)]
