"""How segments are really sent, compiled: each takes the full g of its bytes, without preemption."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled
from pace.solver.kernels.jackson import admit, drop_first
from pace.solver.kernels.partition import first_above, price


@compiled
def most_within(duration: float, sizes: FloatArray, durations: FloatArray, slope: float) -> float:
    """Return the largest size in bytes whose g is at most `duration`; 0 if there is none, inf if all are."""
    last = len(sizes) - 1
    if duration >= durations[last]:
        return float(sizes[last] + (duration - durations[last]) / slope) if slope > 0.0 else np.inf
    if duration < durations[0]:
        return 0.0
    right = first_above(durations, duration)
    share = (duration - durations[right - 1]) / (durations[right] - durations[right - 1])
    return float(sizes[right - 1] + share * (sizes[right] - sizes[right - 1]))


@compiled
def cut_while_sending(
    ready: FloatArray,
    tail: FloatArray,
    elements: IntArray,
    element_bytes: FloatArray,
    by_ready: IntArray,
    by_rank: IntArray,
    knot_sizes: FloatArray,
    knot_durations: FloatArray,
    slope: float,
    patience: float,
    max_segment_bytes: float,
    jobs: IntArray,
    counts: IntArray,
    starts: FloatArray,
    ends: FloatArray,
) -> tuple[int, float]:
    """Send groups by longest tail; cut one only where a longer tail would wait over `patience` seconds.

    Releases are known, so a segment is cut to end when the longer tail is released. If the time until then is
    too short for a useful segment, the network idles, provided that not even one element fits or that idling
    delays the group by at most `patience`.

    Writes each segment's group, number of elements, start and end. Returns the number of segments (-1 if the
    arrays have no room for them) and max(end + tail).
    """
    n = len(ready)
    rank = np.empty(n, dtype=np.int64)
    left = elements.copy()
    heap = np.empty(n + 1, dtype=np.int64)
    # Not the literal 0: numba would compile what they are passed to once more, for it.
    size = 0 * n
    upcoming = 0 * n
    now = 0.0
    segments = 0
    objective = 0.0
    for place in range(n):
        job = by_rank[place]
        rank[job] = place
        if left[job] == 0:  # nothing to send: done as soon as it is released
            objective = max(objective, ready[job] + tail[job])
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
        count = left[job]
        if count * element_bytes[job] > max_segment_bytes:
            count = max(1, int(max_segment_bytes / element_bytes[job]))
        end = now + price(count * element_bytes[job], knot_sizes, knot_durations, slope)
        following = upcoming
        while following < n and ready[by_ready[following]] < end:
            other = by_ready[following]
            if rank[other] < rank[job] and left[other] > 0:
                break
            following += 1
        if following < n and ready[by_ready[following]] < end - patience:
            release = ready[by_ready[following]]
            fitting = most_within(release - now, knot_sizes, knot_durations, slope) / element_bytes[job]
            # A cut costs about one more latency, so a segment whose bytes take less than that is useless.
            if fitting >= 1.0 and release - now > 2.0 * knot_durations[0]:
                count = min(count, int(fitting))
                end = now + price(count * element_bytes[job], knot_sizes, knot_durations, slope)
            elif fitting < 1.0 or release - now <= patience:
                now = release
                continue
        jobs[segments] = job
        counts[segments] = count
        starts[segments] = now
        ends[segments] = end
        segments += 1
        left[job] -= count
        now = end
        if left[job] == 0:
            objective = max(objective, end + tail[job])
            drop_first(heap, size)
            size -= 1
    return segments, objective
