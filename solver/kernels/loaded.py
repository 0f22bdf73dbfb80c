"""Windows under load, compiled (``pace.solver.loaded``)."""

from typing import NamedTuple

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled, compiled_in_place
from pace.solver.kernels.partition import price
from pace.solver.loaded import ROUNDING, CallCosts, Compute, LoadedWindows


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

    See ``pace.solver.loaded.LoadedWindows``, ``Compute`` and ``Calls`` for the arguments. `by_tail` has the
    groups that are sent, in order of tail, the longest first; `segments` the number of calls of each group.
    """
    arrival = np.empty(len(ready))
    left = np.empty(len(ready), dtype=np.int64)
    for window in range(len(slower)):
        factor, late = slower[window], lateness[window]
        backward = backward_s * factor + backward_spread_s * late
        latest = backward + forward_s * factor
        for group in range(len(ready)):
            left[group] = segments[group]
            arrival[group] = ready[group] * factor + spread[group] * late
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
            now = max(now, ready[group] * factor + spread[group] * late)
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


class Room(NamedTuple):
    """Arrays in which the times of calls, and of windows, are computed."""

    durations: FloatArray
    extra: FloatArray
    starts: FloatArray
    ends: FloatArray
    segments: IntArray
    windows: FloatArray
    busy: FloatArray


@compiled
def room_for(calls: int, groups: int, windows: int) -> Room:
    """Return arrays for at most so many calls and groups."""
    return Room(
        np.empty(calls),
        np.empty(calls),
        np.empty(calls),
        np.empty(calls),
        np.empty(groups, dtype=np.int64),
        np.empty(windows),
        np.empty(windows),
    )


@compiled_in_place
def mean_window(
    ready: FloatArray,
    spread: FloatArray,
    tail: FloatArray,
    by_tail: IntArray,
    groups: IntArray,
    sizes: FloatArray,
    costs: CallCosts,
    compute: Compute,
    random: LoadedWindows,
    room: Room,
) -> float:
    """Return the mean window, in wall time, of calls of these groups and `sizes`, in their order.

    Other arguments are those of ``replay``. The times of calls in the last window are in `room`.
    """
    for group in range(len(ready)):
        room.segments[group] = 0
    for call in range(len(groups)):
        room.durations[call] = price(sizes[call], *costs.cost)
        room.extra[call] = price(sizes[call], *costs.extra)
        room.segments[groups[call]] += 1
    replay(
        ready,
        spread,
        tail,
        by_tail,
        room.segments,
        groups,
        room.durations,
        room.extra,
        compute.backward_s,
        compute.backward_spread_s,
        compute.forward_s,
        random.slower,
        random.lateness,
        room.starts,
        room.ends,
        room.windows,
        room.busy,
    )
    mean = 0.0  # NumPy's mean adds in another order when it is not compiled
    count = len(random.slower)
    for window in range(count):
        mean += (room.windows[window] + (costs.slowdown - 1) * room.busy[window]) / count
    return mean


@compiled
def merge_greedily(
    ready: FloatArray,
    spread: FloatArray,
    tail: FloatArray,
    sizes: FloatArray,
    kinds: IntArray,
    limits: FloatArray,
    costs: CallCosts,
    compute: Compute,
    random: LoadedWindows,
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
    tried = np.empty((4, n))
    numbers = np.arange(n)
    room = room_for(n, n, len(random.slower))
    count = 0 * n
    while n > 1:
        best, best_next, least = -1, -1, np.inf
        for first in range(n - 1):
            second = first + 1
            while second < n and kinds[second] != kinds[first]:
                second += 1
            if second == n or sizes[first] + sizes[second] > limits[first]:
                continue
            for call in range(n - 1):
                of = call if call < first else call + 1
                tried[0, call], tried[1, call] = ready[of], spread[of]
                tried[2, call], tried[3, call] = tail[of], sizes[of]
            at = second - 1
            if ready[first] > ready[second]:
                tried[0, at], tried[1, at] = ready[first], spread[first]
            tried[2, at] = max(tail[first], tail[second])
            tried[3, at] = sizes[first] + sizes[second]
            mean = mean_window(
                tried[0, : n - 1],
                tried[1, : n - 1],
                tried[2, : n - 1],
                np.argsort(-tried[2, : n - 1], kind="mergesort"),
                numbers[: n - 1],
                tried[3, : n - 1],
                costs,
                compute,
                random,
                room,
            )
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
        n -= 1
        for call in range(best, n):
            ready[call], spread[call], tail[call] = ready[call + 1], spread[call + 1], tail[call + 1]
            sizes[call], kinds[call], limits[call] = sizes[call + 1], kinds[call + 1], limits[call + 1]
    return count
