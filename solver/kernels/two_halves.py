"""How reduce-scatters and all-gathers are really sent, compiled: in segments, without preemption."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled
from pace.solver.kernels.jackson import admit, drop_first, push
from pace.solver.kernels.partition import aligned, grain, most_within, price


@compiled
def send_chained(
    ready: FloatArray,
    tail: FloatArray,
    elements: IntArray,
    element_bytes: FloatArray,
    row_bytes: FloatArray,
    after: IntArray,
    first_after: IntArray,
    missing: IntArray,
    by_ready: IntArray,
    by_rank: IntArray,
    scatter_sizes: FloatArray,
    scatter_durations: FloatArray,
    scatter_slope: float,
    gather_sizes: FloatArray,
    gather_durations: FloatArray,
    gather_slope: float,
    patience: float,
    max_segment_bytes: float,
    jobs: IntArray,
    counts: IntArray,
    starts: FloatArray,
    ends: FloatArray,
) -> tuple[int, float]:
    """Send by longest tail; a gather is released when the last reduce-scatter that it needs has ended.

    The jobs are the n reduce-scatters, then the gathers. The gathers that need reduce-scatter i are
    ``after[first_after[i]:first_after[i + 1]]``, numbered from n. `missing` holds the number of
    reduce-scatters that each gather needs; it is overwritten. Jobs are cut as in
    ``kernels.jackson.cut_while_sending``; `row_bytes` of an element follow one another in memory. Only
    reduce-scatters can be released during a segment.

    Writes each segment's job, number of elements, start and end. Returns the number of segments (-1 if the
    arrays have no room for them) and max(end + tail) over the gathers.
    """
    n = len(ready)
    rank = np.empty(len(by_rank), dtype=np.int64)
    for place in range(len(by_rank)):
        rank[by_rank[place]] = place
    left = elements.copy()
    heap = np.empty(len(by_rank) + 1, dtype=np.int64)
    size = 0
    upcoming = 0
    now = 0.0
    segments = 0
    objective = 0.0
    while True:
        upcoming, size = admit(now, ready, left, rank, by_ready, upcoming, heap, size)
        if size == 0:
            if upcoming == n:
                break
            now = ready[by_ready[upcoming]]
            continue
        if segments == len(jobs):
            return -1, np.inf
        job = by_rank[heap[0]]
        sizes, durations, slope = gather_sizes, gather_durations, gather_slope
        if job < n:
            sizes, durations, slope = scatter_sizes, scatter_durations, scatter_slope
        count = left[job]
        if count * element_bytes[job] > max_segment_bytes:
            count = aligned(max(1, int(max_segment_bytes / element_bytes[job])), row_bytes[job])
        end = now + price(count * element_bytes[job], sizes, durations, slope)
        following = upcoming
        while following < n and ready[by_ready[following]] < end:
            if rank[by_ready[following]] < rank[job]:
                break
            following += 1
        if following < n and ready[by_ready[following]] < end - patience:
            release = ready[by_ready[following]]
            fitting = most_within(release - now, sizes, durations, slope) / element_bytes[job]
            # A cut costs about one more latency, so a segment whose bytes take less than that is useless.
            if fitting >= 1.0 and release - now > 2.0 * durations[0]:
                if int(fitting) < count:
                    count = aligned(int(fitting), row_bytes[job])
                end = now + price(count * element_bytes[job], sizes, durations, slope)
            elif fitting < grain(count, row_bytes[job]) or release - now <= patience:
                now = release
                continue
        jobs[segments] = job
        counts[segments] = count
        starts[segments] = now
        ends[segments] = end
        segments += 1
        left[job] -= count
        now = end
        if left[job] > 0:
            continue
        drop_first(heap, size)
        size -= 1
        if job >= n:
            objective = max(objective, end + tail[job])
            continue
        for at in range(first_after[job], first_after[job + 1]):
            gather = after[at]
            missing[gather - n] -= 1
            if missing[gather - n] == 0:
                push(heap, size, rank[gather])
                size += 1
    return segments, objective
