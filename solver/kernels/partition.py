"""Partitions of a chain into runs, compiled: exact dynamic programs whose crossing points move one way."""

import numpy as np
import numpy.typing as npt

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled


@compiled
def first_at_least(values: FloatArray, value: float) -> int:
    """Return the first place in rising `values` of what is at least `value`, as ``np.searchsorted`` does.

    That one takes ten times as long to compile.
    """
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def first_above(values: FloatArray, value: float) -> int:
    """Return the first place in rising `values` of what is above `value`."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) >> 1
        if values[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def price(size: float, sizes: FloatArray, durations: FloatArray, slope: float) -> float:
    """Return g(size) for the curve with these knots; see ``pace.solver.cost_curve``."""
    if size <= 0.0:
        return 0.0
    last = len(sizes) - 1
    if size >= sizes[last]:
        return float(durations[last] + (size - sizes[last]) * slope)
    if size <= sizes[0]:
        return float(durations[0])
    right = first_at_least(sizes, size)
    share = (size - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
    return float(durations[right - 1] + share * (durations[right] - durations[right - 1]))


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
def grain(count: int, element_bytes: float) -> int:
    """Return of how many elements a segment of about `count` carries a multiple, unless it is the last.

    So the next segment begins at a multiple of 16 bytes, or of 128 if the segment is at most 1.6 % shorter
    then: NCCL is several times slower on misaligned memory. Segments of less than 16 bytes are left as short.
    """
    size = count * element_bytes
    if size >= 8192:
        return max(1, int(128 // element_bytes))
    if size >= 16:
        return max(1, int(16 // element_bytes))
    return 1


@compiled
def aligned(count: int, element_bytes: float) -> int:
    """Return how many of `count` elements a segment carries that is not its group's last; see ``grain``."""
    return count - count % grain(count, element_bytes)


@compiled
def max_min_step(
    ends: IntArray, previous: IntArray, current: IntArray, following: npt.NDArray[np.int32]
) -> None:
    """Fill f_m from f_{m-1}: f_m(i) = max over j of min(S(i..j), f_{m-1}(j + 1)).

    `ends[i]` is the size of the first i elements. S rises with j, f_{m-1}(j + 1) falls, and the place where
    they cross moves left with i. So the whole row takes O(n). ``following[i]`` is the start of the run after
    the one that starts at i, for the first j that reaches the maximum.
    """
    n = len(ends) - 1
    j = n - 1
    for i in range(n - 1, -1, -1):
        while j > i and ends[j] - ends[i] >= previous[j]:
            j -= 1
        current[i] = min(ends[j + 1] - ends[i], previous[j + 1])
        following[i] = j + 1
        if j > i and ends[j] - ends[i] >= current[i]:
            current[i] = ends[j] - ends[i]
            following[i] = j
    current[n] = 0


@compiled
def follow_runs(following: npt.NDArray[np.int32], cuts: IntArray) -> None:
    """Write the starts of runs to all of `cuts`; row m - 1 of `following` is for the last m runs."""
    cuts[0] = 0
    for run in range(1, len(cuts)):
        cuts[run] = following[len(cuts) - run, cuts[run - 1]]


@compiled
def fewest_groups_under(
    limit: float,
    release_plus_tail: FloatArray,
    ends: FloatArray,
    last: IntArray,
    latency: float,
    slope: float,
    until: IntArray,
) -> float:
    """Partition the chain so that no group's bound exceeds `limit`; return the objective, or inf.

    The objective is the maximum over runs a of r_last(a) + q_last(a) + the sum of p over a and later runs. It
    is inf if no partition keeps the limit. Writes the last element of each run to `until`. Fewer groups after
    a run leave it more time, and a longer run leaves fewer groups after it, so the longest feasible run is
    taken. An end that is too late for a run is too late for every longer one, so all runs take O(n).
    """
    n = len(last)
    groups = np.zeros(n + 1, dtype=np.int64)
    worst = np.full(n + 1, -np.inf)
    j = n - 1
    for i in range(n - 1, -1, -1):
        fixed = slope * (ends[n] - ends[i])
        j = min(j, last[i])
        while j >= i and (
            groups[j + 1] < 0 or release_plus_tail[j] + (1 + groups[j + 1]) * latency > limit - fixed
        ):
            j -= 1
        until[i] = j
        groups[i] = -1
        if j >= i:
            groups[i] = 1 + groups[j + 1]
            worst[i] = max(release_plus_tail[j] + groups[i] * latency + fixed, worst[j + 1])
    return float(worst[0]) if groups[0] >= 0 else np.inf


@compiled
def _cheapest_run(
    start: int,
    limit: float,
    release_plus_tail: FloatArray,
    ends: FloatArray,
    last: IntArray,
    sizes: FloatArray,
    durations: FloatArray,
    slope: float,
    after: FloatArray,
    total: FloatArray,
    until: npt.NDArray[np.int64 | np.int32],
) -> None:
    """Write the least total duration from `start` on under the limit, and the last element of its first run.

    They go to ``total[start]`` and ``until[start]``: inf and start - 1 if no run keeps the limit.
    ``after[i]`` is the total duration of the runs from i on.
    """
    total[start] = np.inf
    until[start] = start - 1
    for j in range(start, last[start] + 1):
        duration = price(ends[j + 1] - ends[start], sizes, durations, slope)
        if duration >= total[start] or release_plus_tail[j] + duration > limit:
            break
        candidate = duration + after[j + 1]
        if candidate < total[start] and release_plus_tail[j] + candidate <= limit:
            total[start] = candidate
            until[start] = j


@compiled
def least_total_under(
    limit: float,
    release_plus_tail: FloatArray,
    ends: FloatArray,
    last: IntArray,
    sizes: FloatArray,
    durations: FloatArray,
    slope: float,
    until: IntArray,
) -> float:
    """Do the same as `fewest_groups_under` for any monotone g; return the objective, or inf if there is none.

    A smaller total duration from a run on leaves every earlier run more time. So only the least total under
    the limit is kept for each start.
    """
    n = len(last)
    total = np.full(n + 1, np.inf)
    total[n] = 0.0
    worst = np.full(n + 1, -np.inf)
    for i in range(n - 1, -1, -1):
        _cheapest_run(i, limit, release_plus_tail, ends, last, sizes, durations, slope, total, total, until)
        j = until[i]
        if j >= i:
            worst[i] = max(release_plus_tail[j] + total[i], worst[j + 1])
    return float(worst[0]) if total[0] < np.inf else np.inf


@compiled
def fewest_runs_under(
    limit: float,
    release_plus_tail: FloatArray,
    ends: FloatArray,
    last: IntArray,
    sizes: FloatArray,
    durations: FloatArray,
    slope: float,
    until: npt.NDArray[np.int32],
) -> int:
    """Return the least number of runs within the limit, for any cost that grows with the size.

    0 if more than `len(until)` runs are needed. The runs are written to `until`: ``until[m, i]`` is the last
    element of a run that begins with element i, if at most m runs follow it; i - 1 if there is none. Among
    these runs, it is the one whose total duration, with those that follow, is smallest. That leaves the runs
    before it the most time.
    """
    n = len(last)
    after = np.full(n + 1, np.inf)
    after[n] = 0.0
    total = np.full(n + 1, np.inf)
    total[n] = 0.0
    for row in range(len(until)):
        for i in range(n - 1, -1, -1):
            _cheapest_run(
                i, limit, release_plus_tail, ends, last, sizes, durations, slope, after, total, until[row]
            )
        if total[0] < np.inf:
            return row + 1
        after[:] = total
    return 0


@compiled
def earliest_ends(
    ready: FloatArray,
    ends: FloatArray,
    first: IntArray,
    sizes: FloatArray,
    durations: FloatArray,
    slope: float,
    start_of: IntArray,
) -> float:
    """Return the end of the chain sent first in, first out; write the start of the run that ends at i.

    It goes to ``start_of[i]``. The end is the earliest of all contiguous groups.

    If a prefix ends earlier, what follows never ends later, so one number for each prefix is enough. A run
    that begins earlier is longer, so the scan stops where its duration alone is too long.
    """
    n = len(ready)
    end = np.zeros(n + 1)
    for j in range(n):
        best = np.inf
        for i in range(j, first[j] - 1, -1):
            duration = price(ends[j + 1] - ends[i], sizes, durations, slope)
            if ready[j] + duration >= best:
                break
            finish = max(end[i], ready[j]) + duration
            if finish < best:
                best = finish
                start_of[j] = i
        end[j + 1] = best
    return float(end[n])
