"""The realizable plan of reduce-scatters and all-gathers: their segments, and the times of these.

With W ranks every buffer has W rows, one for each rank's shard. A segment is a range of the columns of a
call's buffer. Updates take no time here.
"""

from dataclasses import dataclass, replace

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.cost_curve import CostCurve
from pace.solver.sending import necessary_segments
from pace.solver.two_halves.calls import Half, dependencies
from pace.solver.two_halves.chains import chained_instance

MAX_SEGMENTS_PER_CALL = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvesSending:
    """Segments in the order in which they are sent.

    Attributes
    ----------
    calls, columns : integer arrays of shape (num_segments,)
        The call of each segment and the number of columns that it carries. Gathers are numbered after the
        reduce-scatters. A segment begins where the call's previous one ended.
    starts, ends : arrays of shape (num_segments,)
        Seconds.
    norm_start_s, norm_end_s
        When the ranks start and end the exchange of their norms; None without a norm.
    objective
        max(end + tail) over the gathers, in seconds; 0 without gathers.
    """

    calls: IntArray
    columns: IntArray
    starts: FloatArray
    ends: FloatArray
    norm_start_s: float | None
    norm_end_s: float | None
    objective: float

    def in_order(
        self, scattered: Half, gathered: Half, durations: FloatArray, norm_s: float | None
    ) -> "HalvesSending":
        """Return these segments in the same order with other durations, in seconds, and another norm's."""
        scatters = self.calls < len(scattered)
        norm = int(np.count_nonzero(scatters))
        ready = np.zeros(len(durations))
        ready[scatters] = scattered.times[self.calls[scatters]]
        if norm_s is not None:
            ready, durations = np.insert(ready, norm, 0.0), np.insert(durations, norm, norm_s)
        # Each starts when it is ready and all before it have ended.
        before = np.cumsum(durations) - durations
        starts = before + np.maximum.accumulate(ready - before)
        timed = self.at(starts, starts + durations, None if norm_s is None else norm)
        last = timed.ends[~scatters] + gathered.times[self.calls[~scatters] - len(scattered)]
        return replace(timed, objective=float(np.max(last, initial=0.0)))

    def at(self, starts: FloatArray, ends: FloatArray, norm: int | None) -> "HalvesSending":
        """Return these segments at other times; the norm is at this place among them, if there is one."""
        if norm is None:
            return replace(self, starts=starts, ends=ends)
        return replace(
            self,
            starts=np.delete(starts, norm),
            ends=np.delete(ends, norm),
            norm_start_s=float(starts[norm]),
            norm_end_s=float(ends[norm]),
        )


def send_chained(
    scattered: Half,
    gathered: Half,
    columns: IntArray,
    column_bytes: IntArray,
    row_bytes: IntArray,
    *,
    reduce_scatter: CostCurve,
    all_gather: CostCurve,
    patience_s: float,
    max_segment_bytes: float = np.inf,
) -> HalvesSending | None:
    """Send without a norm: longest tail first, cut only where a longer tail would wait over `patience_s`.

    A heuristic: always feasible, and optimal for these calls if cuts cost nothing
    (``pace.solver.two_halves.chains``).

    Parameters
    ----------
    columns, column_bytes, row_bytes : arrays of shape (num_calls,)
        The number of columns of each call's buffer, the bytes of one column, and of one of its elements;
        gathers after reduce-scatters.

    Returns
    -------
    HalvesSending or None
        None if too many segments are needed. With infinite patience this never happens.
    """
    from pace.solver.kernels import two_halves as kernel

    n = len(scattered)
    instance = chained_instance(scattered, gathered, reduce_scatter=reduce_scatter, all_gather=all_gather)
    pairs = dependencies(scattered, gathered)
    room = MAX_SEGMENTS_PER_CALL * len(instance) + necessary_segments(
        columns, column_bytes, max_segment_bytes, row_bytes=row_bytes
    )
    jobs, counts = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
    starts, ends = np.empty(room), np.empty(room)
    by_head = np.argsort(instance.ready, kind="stable")
    by_rank = by_head[np.argsort(-instance.tail[by_head], kind="stable")]
    segments, objective = kernel.send_chained(
        scattered.times,
        instance.tail,
        columns,
        column_bytes.astype(np.float64),
        row_bytes.astype(np.float64),
        pairs[:, 1] + n,
        np.searchsorted(pairs[:, 0], np.arange(n + 1)).astype(np.int64),
        np.bincount(pairs[:, 1], minlength=len(gathered)).astype(np.int64),
        np.argsort(scattered.times, kind="stable"),
        by_rank,
        *reduce_scatter.knots(),
        *all_gather.knots(),
        patience_s,
        max_segment_bytes,
        jobs,
        counts,
        starts,
        ends,
    )
    if segments < 0:
        return None
    kept = slice(segments)
    return HalvesSending(
        calls=jobs[kept],
        columns=counts[kept],
        starts=starts[kept],
        ends=ends[kept],
        norm_start_s=None,
        norm_end_s=None,
        objective=objective,
    )


def send_behind_norm(
    scattered: Half,
    gathered: Half,
    columns: IntArray,
    column_bytes: IntArray,
    row_bytes: IntArray,
    *,
    reduce_scatter: CostCurve,
    all_gather: CostCurve,
    norm_s: float,
    max_segment_bytes: float = np.inf,
) -> HalvesSending:
    """Send with a norm: reduce-scatters first in, first out, then the norm, then gathers by longest tail.

    Optimal for these calls if `max_segment_bytes` cuts none of them (``pace.solver.two_halves.behind_norm``).
    Parameters are those of ``send_chained``; `norm_s` is how long the exchange of norms takes.
    """
    from pace.solver.kernels.partition import aligned

    n = len(scattered)
    calls: list[int] = []
    counts: list[int] = []
    starts: list[float] = []
    ends: list[float] = []
    now = 0.0
    norm: tuple[float, float] | None = None
    first = np.argsort(scattered.times, kind="stable")
    second = np.argsort(-gathered.times, kind="stable") + n
    for call in (*first.tolist(), -1, *second.tolist()):
        if call < 0:
            norm = (now, now + norm_s)
            now += norm_s
            continue
        cost = reduce_scatter if call < n else all_gather
        if call < n:
            now = max(now, float(scattered.times[call]))
        most = int(columns[call])
        if most * column_bytes[call] > max_segment_bytes:
            most = aligned(max(1, int(max_segment_bytes / column_bytes[call])), float(row_bytes[call]))
        left = int(columns[call])
        while left:
            count = min(most, left)
            calls.append(call)
            counts.append(count)
            starts.append(now)
            now += float(cost(count * column_bytes[call]))
            ends.append(now)
            left -= count
    assert norm is not None
    done = np.array(ends)
    of_gather = np.array(calls, dtype=np.int64) - n
    waiting = of_gather >= 0
    last = done[waiting] + gathered.times[of_gather[waiting]]
    return HalvesSending(
        calls=np.array(calls, dtype=np.int64),
        columns=np.array(counts, dtype=np.int64),
        starts=np.array(starts),
        ends=done,
        norm_start_s=norm[0],
        norm_end_s=norm[1],
        objective=float(np.max(last, initial=0.0)),
    )
