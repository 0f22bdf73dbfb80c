"""Longest tail first, compiled: with free preemption, and as a network sends, which cannot preempt.

The heap holds ranks, in which ties are already broken.
"""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled, compiled_in_place
from pace.solver.kernels.partition import aligned, grain, most_within, price


@compiled_in_place
def push(heap: IntArray, size: int, rank: int) -> None:
    """Add `rank` to the binary heap of `size` elements."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if heap[above] <= rank:
            break
        heap[at] = heap[above]
        at = above
    heap[at] = rank


@compiled_in_place
def drop_first(heap: IntArray, size: int) -> None:
    """Remove the smallest rank from the binary heap of `size` elements."""
    last = heap[size - 1]
    size -= 1
    at = 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and heap[below + 1] < heap[below]:
            below += 1
        if heap[below] >= last:
            break
        heap[at] = heap[below]
        at = below
    heap[at] = last


@compiled
def admit(
    now: float,
    ready: FloatArray,
    left: FloatArray | IntArray,
    rank: IntArray,
    by_ready: IntArray,
    upcoming: int,
    heap: IntArray,
    size: int,
) -> tuple[int, int]:
    """Add the jobs that are released by `now` and not finished to the heap.

    Returns the place in `by_ready` of the first job that is not released yet, and the size of the heap.
    """
    while upcoming < len(by_ready) and ready[by_ready[upcoming]] <= now:
        job = by_ready[upcoming]
        upcoming += 1
        if left[job] > 0:
            push(heap, size, rank[job])
            size += 1
    return upcoming, size


@compiled
def serve(
    ready: FloatArray,
    processing: FloatArray,
    tail: FloatArray,
    by_ready: IntArray,
    by_rank: IntArray,
    jobs: IntArray,
    starts: FloatArray,
    ends: FloatArray,
    completion: FloatArray,
) -> tuple[int, float]:
    """Serve the released job of lowest rank at every moment.

    Writes the pieces to `jobs`, `starts` and `ends` (which need room for 2 n pieces), and each job's end to
    `completion`. Returns the number of pieces and the objective.
    """
    n = len(ready)
    rank = np.empty(n, dtype=np.int64)
    left = processing.copy()
    heap = np.empty(n + 1, dtype=np.int64)
    # Not the literal 0: numba would compile what they are passed to once more, for it.
    size = 0 * n
    upcoming = 0 * n
    now = 0.0
    pieces = 0
    objective = 0.0
    for place in range(n):
        job = by_rank[place]
        rank[job] = place
        if left[job] == 0.0:  # nothing to serve: done as soon as it is released
            completion[job] = ready[job]
            objective = max(objective, ready[job] + tail[job])
    while True:
        upcoming, size = admit(now, ready, left, rank, by_ready, upcoming, heap, size)
        if size == 0:
            if upcoming == n:
                break
            now = ready[by_ready[upcoming]]
            continue
        job = by_rank[heap[0]]
        end = now + left[job]
        # A job released exactly at `end`, or one that would not preempt, must not cut this piece.
        while upcoming < n and ready[by_ready[upcoming]] < end and rank[by_ready[upcoming]] > rank[job]:
            later = by_ready[upcoming]
            upcoming += 1
            if left[later] > 0.0:
                push(heap, size, rank[later])
                size += 1
        jobs[pieces] = job
        starts[pieces] = now
        if upcoming < n and ready[by_ready[upcoming]] < end:
            now = ready[by_ready[upcoming]]
            left[job] = end - now
        else:
            now = end
            left[job] = 0.0
            completion[job] = end
            objective = max(objective, end + tail[job])
            drop_first(heap, size)
            size -= 1
        ends[pieces] = now
        pieces += 1
    return pieces, objective


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
            count = aligned(max(1, int(max_segment_bytes / element_bytes[job])), element_bytes[job])
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
                if int(fitting) < count:
                    count = aligned(int(fitting), element_bytes[job])
                end = now + price(count * element_bytes[job], knot_sizes, knot_durations, slope)
            elif fitting < grain(count, element_bytes[job]) or release - now <= patience:
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
