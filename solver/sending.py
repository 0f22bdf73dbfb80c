"""The realizable plan: groups cut into segments, each of which takes the full g of its bytes.

The oracle preempts at no cost; a network cannot preempt. ``cut_while_sending`` cuts groups where a longer
tail would wait too long, ``cut_as_solved`` where an oracle preempted. ``send_in_order`` computes the times of
segments. The caller chooses the fastest of several such plans.
"""

from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.cost_curve import CostCurve
from pace.solver.one_machine import Instance, Solution

MAX_SEGMENTS_PER_GROUP = 64
# Sums of segments differ from one piece by rounding.
CHEAPER = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """The buffers of groups.

    Attributes
    ----------
    ready, tail : arrays of shape (num_groups,)
        Seconds.
    elements, element_bytes : arrays of shape (num_groups,)
        The number of elements in each buffer, and the bytes of one element.
    """

    ready: FloatArray
    tail: FloatArray
    elements: IntArray
    element_bytes: IntArray

    @property
    def sizes(self) -> IntArray:
        """Bytes of every buffer."""
        return self.elements * self.element_bytes

    def instance(self, cost: CostCurve) -> Instance:
        """Return the one-machine instance in which each buffer is one job."""
        return Instance(ready=self.ready, processing=cost(self.sizes), tail=self.tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """Segments in the order in which they are sent.

    Attributes
    ----------
    groups, elements : integer arrays of shape (num_segments,)
        The group of each segment and the number of elements that it carries. It begins where the group's
        previous segment ended.
    starts, ends : arrays of shape (num_segments,)
        Seconds.
    objective : float
        max(end + tail) over all groups; a group without elements ends when it is ready.
    """

    groups: IntArray
    elements: IntArray
    starts: FloatArray
    ends: FloatArray
    objective: float


def cut_while_sending(
    buffers: Buffers, cost: CostCurve, *, patience_s: float, max_segment_bytes: float = np.inf
) -> Sending | None:
    """Send by longest tail; cut a group only where a longer tail would wait longer than `patience_s`.

    A heuristic: always feasible, and optimal if cuts cost nothing.

    Returns
    -------
    Sending or None
        None if, besides the segments that `max_segment_bytes` requires, more than `MAX_SEGMENTS_PER_GROUP`
        segments a group are needed on average. With infinite patience this never happens.
    """
    from pace.solver.kernels import jackson as kernel

    room = MAX_SEGMENTS_PER_GROUP * len(buffers.ready)
    room += necessary_segments(buffers.elements, buffers.element_bytes, max_segment_bytes)
    groups, counts = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
    starts, ends = np.empty(room), np.empty(room)
    by_ready = np.argsort(buffers.ready, kind="stable")
    by_rank = by_ready[np.argsort(-buffers.tail[by_ready], kind="stable")]
    segments, objective = kernel.cut_while_sending(
        buffers.ready,
        buffers.tail,
        buffers.elements,
        buffers.element_bytes.astype(np.float64),
        by_ready,
        by_rank,
        *cost.knots(),
        patience_s,
        max_segment_bytes,
        groups,
        counts,
        starts,
        ends,
    )
    if segments < 0:
        return None
    kept = slice(segments)
    return Sending(
        groups=groups[kept], elements=counts[kept], starts=starts[kept], ends=ends[kept], objective=objective
    )


def necessary_segments(
    elements: IntArray,
    element_bytes: IntArray,
    max_segment_bytes: float,
    *,
    row_bytes: IntArray | None = None,
) -> int:
    """Return the number of segments if every segment but the last of a group has the largest allowed size.

    `elements` and `element_bytes` are those of ``Buffers``. `row_bytes` are the bytes of an element that
    follow one another in memory (default: all).
    """
    if np.isinf(max_segment_bytes):
        return int(np.count_nonzero(elements))
    from pace.solver.kernels.partition import aligned

    largest = np.maximum(max_segment_bytes // element_bytes, 1).astype(np.int64)
    together = element_bytes if row_bytes is None else row_bytes
    counts = zip(largest.tolist(), together.tolist(), strict=True)
    return int(np.sum(-(-elements // [aligned(count, float(size)) for count, size in counts])))


def least_durations(whole_s: FloatArray, groups: IntArray, segments_s: FloatArray) -> FloatArray:
    """Return the seconds of each group in one piece, or in its segments if these take less.

    Measured costs may jump, so that two small calls take less time than a large one.

    Parameters
    ----------
    whole_s : array of shape (num_groups,)
        Seconds of each group in one piece.
    groups, segments_s : arrays of shape (num_segments,)
        The group of each segment, and its seconds.
    """
    cut_s = np.bincount(groups, weights=segments_s, minlength=len(whole_s))
    return np.where(cut_s < whole_s * (1 - CHEAPER), cut_s, whole_s)


def send_in_order(buffers: Buffers, groups: IntArray, elements: IntArray, cost: CostCurve) -> Sending:
    """Send the given segments one after another in this order, none before its group is ready.

    `groups` and `elements` are those of ``Sending``.
    """
    durations: list[float] = cost(elements * buffers.element_bytes[groups]).tolist()
    ready: list[float] = buffers.ready[groups].tolist()
    starts, ends = np.empty(len(groups)), np.empty(len(groups))
    now = 0.0
    for number, (ready_s, duration_s) in enumerate(zip(ready, durations, strict=True)):
        starts[number] = start = ready_s if ready_s > now else now
        now = ends[number] = start + duration_s
    completion = buffers.ready.copy()
    np.maximum.at(completion, groups, ends)
    objective = float(np.max(completion + buffers.tail, initial=0.0))
    return Sending(groups=groups, elements=elements, starts=starts, ends=ends, objective=objective)


def cut_as_solved(buffers: Buffers, solution: Solution) -> tuple[IntArray, IntArray]:
    """Convert an oracle's pieces to numbers of elements, in proportion to their time.

    Returns
    -------
    pieces, elements : integer arrays of shape (num_segments,)
        Indices of the pieces that carry elements, and how many each carries. If a group has fewer elements
        than pieces, some pieces carry none, but its last piece always carries one.
    """
    from pace.solver.kernels.partition import aligned

    lengths = solution.ends - solution.starts
    total = np.zeros(len(buffers.elements))
    np.add.at(total, solution.jobs, lengths)
    served = np.zeros(len(buffers.elements))
    sizes = buffers.element_bytes.astype(np.float64).tolist()
    sent = np.zeros(len(buffers.elements), dtype=np.int64)
    counts = np.zeros(len(lengths), dtype=np.int64)
    final = dict(zip(solution.jobs.tolist(), range(len(lengths)), strict=True))
    for piece, (job, length) in enumerate(zip(solution.jobs.tolist(), lengths.tolist(), strict=True)):
        served[job] += length
        # Multiply first: of 49 elements in 49 slots, each slot carries one, but 49 * (1 / 49) is less than 1.
        share = int(buffers.elements[job] * served[job] / total[job])
        until = int(buffers.elements[job])
        if final[job] != piece:
            until = sent[job] + aligned(min(share, until - 1) - sent[job], sizes[job])
        counts[piece] = until - sent[job]
        sent[job] = until
    kept = np.flatnonzero(counts)
    return kept, counts[kept]
