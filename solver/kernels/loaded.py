"""Windows under load, compiled (``pace.solver.loaded``)."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled
from pace.solver.kernels.partition import price
from pace.solver.loaded import ROUNDING


@compiled
def replay(
    ready: FloatArray,
    spread: FloatArray,
    tail: FloatArray,
    by_tail: IntArray,
    segments: IntArray,
    groups: IntArray,
    durations: FloatArray,
    extra: FloatArray,
    backward_s: float,
    backward_spread_s: float,
    forward_s: float,
    slower: FloatArray,
    lateness: FloatArray,
    starts: FloatArray,
    ends: FloatArray,
    windows: FloatArray,
    busy: FloatArray,
) -> None:
    """Send the calls in their order in every window; write their times in the last one.

    See ``pace.solver.loaded.LoadedWindows`` and ``Calls`` for the arrays. `by_tail` has the groups that are
    sent, in order of tail, the longest first; `segments` the number of calls of each group.
    """
    arrival = np.empty(len(ready))
    left = np.empty(len(ready), dtype=np.int64)
    for window in range(len(slower)):
        factor = slower[window]
        backward = backward_s * factor + backward_spread_s * lateness[window]
        latest = backward + forward_s * factor
        for group in range(len(ready)):
            left[group] = segments[group]
            arrival[group] = ready[group] * factor + spread[group] * lateness[window]
            if left[group] == 0:
                latest = max(latest, arrival[group] + tail[group] * factor)
        # Compute is one stream: after the backward pass come the consumers of groups, longest tail first.
        place = 0
        reached = backward
        until = backward
        now = 0.0
        carried = 0.0
        for call in range(len(groups)):
            group = groups[call]
            now = max(now, ready[group] * factor + spread[group] * lateness[window])
            while place < len(by_tail) and left[by_tail[place]] == 0:
                first = by_tail[place]
                reached = max(until, arrival[first])
                place += 1
                following = 0.0
                if place < len(by_tail):
                    following = tail[by_tail[place]] * factor
                until = reached + tail[first] * factor - following
            starts[call] = now
            lasting = durations[call]
            if now < until * (1 - ROUNDING):
                lasting += extra[call]
            carried += lasting
            now += lasting
            ends[call] = now
            left[group] -= 1
            if left[group] == 0:
                arrival[group] = now
                latest = max(latest, now + tail[group] * factor)
        windows[window] = latest
        busy[window] = carried


@compiled
def merge_greedily(
    ready: FloatArray,
    spread: FloatArray,
    tail: FloatArray,
    sizes: FloatArray,
    kinds: IntArray,
    limits: FloatArray,
    cost_sizes: FloatArray,
    cost_durations: FloatArray,
    cost_slope: float,
    extra_sizes: FloatArray,
    extra_durations: FloatArray,
    extra_slope: float,
    backward_s: float,
    backward_spread_s: float,
    forward_s: float,
    slowdown: float,
    slower: FloatArray,
    lateness: FloatArray,
    merges: IntArray,
    means: FloatArray,
) -> int:
    """Merge each time those two calls of one kind after which the mean window is shortest.

    The first arrays have one entry for each call, in the order in which they are sent. A call may be merged
    with the next one of its kind, in whose place both are sent then; together they have at most its `limits`
    bytes. Writes the places of the two to a row of `merges` and the mean window, in wall time, to `means`;
    returns how many were merged.
    """
    n = len(ready)
    ready, spread, tail, sizes = ready.copy(), spread.copy(), tail.copy(), sizes.copy()
    kinds, limits = kinds.copy(), limits.copy()
    durations, extra = np.empty(n), np.empty(n)
    for call in range(n):
        durations[call] = price(sizes[call], cost_sizes, cost_durations, cost_slope)
        extra[call] = price(sizes[call], extra_sizes, extra_durations, extra_slope)
    tried = np.empty((5, n))
    segments, numbers = np.ones(n, dtype=np.int64), np.arange(n)
    starts, ends = np.empty(n), np.empty(n)
    windows, busy = np.empty(len(slower)), np.empty(len(slower))
    count = 0 * n
    while n > 1:
        best, best_next, least = -1, -1, np.inf
        for first in range(n - 1):
            second = first + 1
            while second < n and kinds[second] != kinds[first]:
                second += 1
            if second == n or sizes[first] + sizes[second] > limits[first]:
                continue
            size = sizes[first] + sizes[second]
            for call in range(n - 1):
                of = call if call < first else call + 1
                tried[0, call], tried[1, call], tried[2, call] = ready[of], spread[of], tail[of]
                tried[3, call], tried[4, call] = durations[of], extra[of]
            at = second - 1
            if ready[first] > ready[second]:
                tried[0, at], tried[1, at] = ready[first], spread[first]
            tried[2, at] = max(tail[first], tail[second])
            tried[3, at] = price(size, cost_sizes, cost_durations, cost_slope)
            tried[4, at] = price(size, extra_sizes, extra_durations, extra_slope)
            by_tail = np.argsort(-tried[2, : n - 1], kind="mergesort")
            replay(
                tried[0, : n - 1],
                tried[1, : n - 1],
                tried[2, : n - 1],
                by_tail,
                segments[: n - 1],
                numbers[: n - 1],
                tried[3, : n - 1],
                tried[4, : n - 1],
                backward_s,
                backward_spread_s,
                forward_s,
                slower,
                lateness,
                starts,
                ends,
                windows,
                busy,
            )
            mean = 0.0  # NumPy's mean adds in another order when it is not compiled
            for window in range(len(slower)):
                mean += (windows[window] + (slowdown - 1) * busy[window]) / len(slower)
            if mean < least:
                best, best_next, least = first, second, mean
        if best < 0:
            break
        merges[count, 0], merges[count, 1], means[count] = best, best_next, least
        count += 1
        if ready[best] > ready[best_next]:
            ready[best_next], spread[best_next] = ready[best], spread[best]
        tail[best_next] = max(tail[best], tail[best_next])
        sizes[best_next] += sizes[best]
        durations[best_next] = price(sizes[best_next], cost_sizes, cost_durations, cost_slope)
        extra[best_next] = price(sizes[best_next], extra_sizes, extra_durations, extra_slope)
        n -= 1
        for call in range(best, n):
            ready[call], spread[call], tail[call] = ready[call + 1], spread[call + 1], tail[call + 1]
            sizes[call], kinds[call], limits[call] = sizes[call + 1], kinds[call + 1], limits[call + 1]
            durations[call], extra[call] = durations[call + 1], extra[call + 1]
    return count
