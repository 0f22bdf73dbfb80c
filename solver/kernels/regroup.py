"""Local search over partitions of gradients into groups, by their window under load, compiled."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled
from pace.solver.kernels.jackson import cut_while_sending
from pace.solver.kernels.loaded import mean_window, room_for
from pace.solver.kernels.search import change, draw
from pace.solver.loaded import CallCosts, Compute, LoadedWindows

# Groups are cut into at most so many calls each on average, and so many more.
MOST_CALLS_PER_GROUP = 4
MORE_CALLS = 16


@compiled
def window_of_groups(
    group_of: IntArray,
    ready: FloatArray,
    spread: FloatArray,
    tail: FloatArray,
    elements: IntArray,
    element_bytes: FloatArray,
    costs: CallCosts,
    compute: Compute,
    random: LoadedWindows,
    patience: float,
    most_bytes: float,
    max_group_bytes: float,
) -> float:
    """Return a partition's mean window, in wall time; inf if a group of several is too large.

    Calls are cut as by ``cut_while_sending``, as if each took the largest extra time.
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
        costs.cost[0],
        costs.cost[1] + costs.extra[1].max(),
        costs.cost[2],
        patience,
        most_bytes,
        jobs,
        served,
        starts,
        ends,
    )
    if calls < 0:
        return np.inf
    times = room_for(calls, groups, len(random.slower))
    of_calls = served[:calls] * sizes[jobs[:calls]]
    return mean_window(
        of_ready,
        of_spread,
        of_tail,
        by_rank,
        jobs[:calls],
        of_calls,
        costs,
        compute,
        random,
        times,
    )


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
    costs: CallCosts,
    compute: Compute,
    random: LoadedWindows,
    patience: float,
    most_bytes: float,
    max_group_bytes: float,
    budget: int,
    seed: int,
) -> float:
    """Improve `group_of` in place by at most `budget` changes at random; return the mean window.

    A change is kept if the mean window is not longer. Arrays are those of ``window_of_groups`` and of
    ``pace.solver.kernels.search.change``.
    """
    state = np.array([seed], dtype=np.uint64)
    trial = group_of.copy()
    best = np.inf
    for made in range(budget + 1):
        if made > 0 and not change(trial, dtypes, orders, places, draw(state, len(trial)), state):
            continue
        value = window_of_groups(
            trial,
            ready,
            spread,
            tail,
            elements,
            element_bytes,
            costs,
            compute,
            random,
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
