"""The paper's Algorithm 2, and lists of updates that are booked one after another, compiled."""

import numpy as np

from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace.solver.compiled import compiled
from pace_fabric.solver.kernels.capacity import FULL as FULL
from pace_fabric.solver.kernels.capacity import copy_into, finish, reserve
from pace_fabric.solver.kernels.ordering import (
    KEPT,
    OVERTAKEN,
    SAME_MOMENT,
    UNDELIVERABLE,
    earliest,
    rank_by_end,
)


@compiled
def paper(
    times: FloatArray,
    rates: FloatArray,
    counts: IntArray,
    size: FloatArray,
    host: IntArray,
    ready: FloatArray,
    deadline: IntArray,
    server: int,
    order: IntArray,
    end: FloatArray,
    fate: IntArray,
    witness: BoolArray,
) -> int:
    """Order as the paper's Algorithm 2, defects included; returns how many are kept, or -1 for no room."""
    n = len(size)
    my_times, my_rates, my_counts = times.copy(), rates.copy(), counts.copy()
    try_times, try_rates, try_counts = times.copy(), rates.copy(), counts.copy()
    pieces = np.empty((2 * times.shape[1], 3))
    alone = np.zeros(n)
    bound = np.empty(n)
    try_bound = np.empty(n)
    free = np.zeros(len(counts) // 2)
    left = np.ones(n, dtype=np.bool_)
    among = np.empty(n, dtype=np.bool_)
    for g in range(n):
        fate[g] = KEPT
        bound[g] = finish(times, rates, counts, host[g], server, size[g], ready[g])
        if bound[g] == np.inf:
            fate[g] = UNDELIVERABLE
            left[g] = False
    kept = 0
    for i in range(1, left.sum() + 1):
        g = -1
        for other in range(n):
            if left[other] and deadline[other] == i:
                g = other
                break
        if g < 0:
            among[:] = left
            g, _ = earliest(
                my_times, my_rates, my_counts, size, host, ready, server, alone, bound, free, among
            )
        left[g] = False
        copy_into(my_times, my_rates, my_counts, try_times, try_rates, try_counts)
        ends, _ = reserve(try_times, try_rates, try_counts, pieces, host[g], server, size[g], ready[g])
        if ends == FULL:
            return -1
        following = -1
        for other in range(n):
            if left[other] and deadline[other] == i + 1:
                following = other
                break
        if following < 0:
            among[:] = left
            try_bound[:] = bound
            following, _ = earliest(
                try_times, try_rates, try_counts, size, host, ready, server, alone, try_bound, free, among
            )
        if following >= 0:
            next_end = finish(
                try_times, try_rates, try_counts, host[following], server, size[following], ready[following]
            )
            if ends > next_end + SAME_MOMENT:
                fate[g] = OVERTAKEN
                witness[g, following] = True
                continue
        end[g] = ends
        order[kept] = g
        kept += 1
        copy_into(try_times, try_rates, try_counts, my_times, my_rates, my_counts)
    return kept


@compiled
def place_list(
    times: FloatArray,
    rates: FloatArray,
    counts: IntArray,
    size: FloatArray,
    host: IntArray,
    ready: FloatArray,
    deadline: IntArray,
    server: int,
    listed: IntArray,
    my_times: FloatArray,
    my_rates: FloatArray,
    my_counts: IntArray,
    pieces: FloatArray,
    end: FloatArray,
) -> float:
    """Book the listed updates one after another; return the sum of their commits.

    They commit by end, except where a deadline forces another order: then some wait. Infinity if there are
    too few positions for the deadlines, FULL if an array has no room.
    """
    copy_into(times, rates, counts, my_times, my_rates, my_counts)
    total = 0.0
    for place in range(len(listed)):
        g = listed[place]
        ends, _ = reserve(my_times, my_rates, my_counts, pieces, host[g], server, size[g], ready[g])
        if ends == FULL:
            return FULL
        end[g] = ends
        total += ends
    ranked = np.empty(len(listed), dtype=np.int64)
    rank_by_end(listed, end, len(listed), ranked)
    for place in range(len(listed)):
        if place + 1 > deadline[ranked[place]]:
            return _held(ranked, end, deadline)
    return total


@compiled
def _held(ranked: IntArray, end: FloatArray, deadline: IntArray) -> float:
    """Return the sum of commits; see ``pace_fabric.solver.ordering.held``."""
    n = len(ranked)
    waiting = np.ones(n, dtype=np.bool_)
    due = np.empty(n, dtype=np.int64)
    total, last = 0.0, 0.0
    for position in range(1, n + 1):
        left = 0
        for place in range(n):
            if waiting[place]:
                due[left] = deadline[ranked[place]]
                left += 1
        due[:left].sort()
        forced = due[left - 1]
        for count in range(1, left + 1):
            if count > due[count - 1] - position + 1:
                return np.inf
            if count == due[count - 1] - position + 1:
                forced = due[count - 1]
                break
        for place in range(n):
            if waiting[place] and deadline[ranked[place]] <= forced:
                waiting[place] = False
                last = max(last, end[ranked[place]])
                total += last
                break
    return total
