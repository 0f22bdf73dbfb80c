"""Local search over partitions of gradients into groups, by their window under load, compiled."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled
from pace.solver.kernels.jackson import cut_while_sending
from pace.solver.kernels.loaded import replay
from pace.solver.kernels.partition import price
from pace.solver.kernels.search import change, draw

# Groups are cut into at most so many calls each on average, and so many more.
MOST_CALLS_PER_GROUP = 4
MORE_CALLS = 16


@compiled
def mean_window(
    group_of: IntArray,
    ready: FloatArray,
    spread: FloatArray,
    tail: FloatArray,
    elements: IntArray,
    element_bytes: FloatArray,
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
    patience: float,
    most_bytes: float,
    max_group_bytes: float,
) -> float:
    """Return a partition's mean window, in wall time; inf if a group of several is too large.

    Calls are cut as by ``cut_while_sending``, as if each took longer by the largest of `extra_durations`.
    """
    n = len(group_of)
    place = np.full(n, -1, dtype=np.int64)
    of_ready, of_spread, of_tail = np.zeros(n), np.zeros(n), np.zeros(n)
    counts, sizes = np.zeros(n, dtype=np.int64), np.zeros(n)
    members = np.zeros(n, dtype=np.int64)
    groups = 0 * n
    for i in range(n):
        at = place[group_of[i]]
        if at < 0:
            at = groups
            place[group_of[i]] = at
            groups += 1
        of_ready[at] = max(of_ready[at], ready[i])
        of_spread[at] = max(of_spread[at], spread[i])
        of_tail[at] = max(of_tail[at], tail[i])
        counts[at] += elements[i]
        sizes[at] = element_bytes[i]
        members[at] += 1
    for at in range(groups):
        if counts[at] * sizes[at] > max_group_bytes and members[at] > 1:
            return np.inf
    of_ready, of_spread, of_tail = of_ready[:groups], of_spread[:groups], of_tail[:groups]
    by_ready = np.argsort(of_ready, kind="mergesort")
    by_rank = by_ready[np.argsort(-of_tail[by_ready], kind="mergesort")]
    room = MOST_CALLS_PER_GROUP * groups + MORE_CALLS
    jobs, served = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
    starts, ends = np.empty(room), np.empty(room)
    calls, _ = cut_while_sending(
        of_ready,
        of_tail,
        counts[:groups],
        sizes[:groups],
        by_ready,
        by_rank,
        cost_sizes,
        cost_durations + extra_durations.max(),
        cost_slope,
        patience,
        most_bytes,
        jobs,
        served,
        starts,
        ends,
    )
    if calls < 0:
        return np.inf
    durations, extra = np.empty(calls), np.empty(calls)
    segments = np.zeros(groups, dtype=np.int64)
    for call in range(calls):
        size = served[call] * sizes[jobs[call]]
        durations[call] = price(size, cost_sizes, cost_durations, cost_slope)
        extra[call] = price(size, extra_sizes, extra_durations, extra_slope)
        segments[jobs[call]] += 1
    windows, busy = np.empty(len(slower)), np.empty(len(slower))
    replay(
        of_ready,
        of_spread,
        of_tail,
        by_rank,
        segments,
        jobs[:calls],
        durations,
        extra,
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
    return mean


@compiled
def regroup(
    group_of: IntArray,
    dtypes: IntArray,
    orders: IntArray,
    places: IntArray,
    ready: FloatArray,
    spread: FloatArray,
    tail: FloatArray,
    elements: IntArray,
    element_bytes: FloatArray,
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
    patience: float,
    most_bytes: float,
    max_group_bytes: float,
    budget: int,
    seed: int,
) -> float:
    """Improve `group_of` in place by at most `budget` changes at random; return the mean window.

    A change is kept if the mean window is not longer. Arrays are those of ``mean_window`` and of
    ``pace.solver.kernels.search.change``.
    """
    state = np.array([seed], dtype=np.uint64)
    trial = group_of.copy()
    best = np.inf
    for made in range(budget + 1):
        if made > 0 and not change(trial, dtypes, orders, places, draw(state, len(trial)), state):
            continue
        value = mean_window(
            trial,
            ready,
            spread,
            tail,
            elements,
            element_bytes,
            cost_sizes,
            cost_durations,
            cost_slope,
            extra_sizes,
            extra_durations,
            extra_slope,
            backward_s,
            backward_spread_s,
            forward_s,
            slowdown,
            slower,
            lateness,
            patience,
            most_bytes,
            max_group_bytes,
        )
        if value <= best:
            best = value
            group_of[:] = trial
        else:
            trial[:] = group_of
    return best
