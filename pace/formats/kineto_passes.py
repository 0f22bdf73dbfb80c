"""The backward passes of a recorded step: more than one under gradient accumulation.

A backward pass ends where an op is differentiated that ran forward after the pass had begun. Operators that
run again inside a backward op, as under checkpointing, are no forward ops of their own.
"""

import bisect
from collections.abc import Mapping, Sequence

from pace.formats.kineto_records import ACCUMULATE, BACKWARD
from pace.formats.kineto_trace import HostOp


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
    for place, op in enumerate(backward):
        numbers = (op.sequence, op.fallback_sequence)
        moments = [made[number] for number in numbers if number is not None and number in made]
        if moments and max(moments) > backward[edges[-1]].start_s:
            edges.append(place)
    return edges


def accumulates(backward: Sequence[HostOp], edges: Sequence[int]) -> bool:
    """Return whether every pass added to as many gradients: the passes of micro-batches."""
    ends = [*edges[1:], len(backward)]
    counts = {
        sum(op.name == BACKWARD + ACCUMULATE for op in backward[first:last])
        for first, last in zip(edges, ends, strict=True)
    }
    return len(edges) > 1 and len(counts) == 1 and 0 not in counts


def segments_between(forward: Sequence[HostOp], starts_s: Sequence[float]) -> list[list[int]]:
    """Return the places of the ops that ran forward before each backward pass."""
    segments: list[list[int]] = [[] for _ in starts_s]
    for place, op in enumerate(forward):
        if not op.name.startswith(BACKWARD):
            at = bisect.bisect_right(starts_s, op.start_s)
            if at < len(segments):
                segments[at].append(place)
    return segments
