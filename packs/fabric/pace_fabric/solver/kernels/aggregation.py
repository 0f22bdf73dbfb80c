"""How many updates go directly and who adds the rest, compiled: every number of direct updates is tried."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled
from pace_fabric.solver.kernels.capacity import FULL, copy_into, finish, reserve

SAME_MOMENT = 1e-9


@compiled
def best_split(
    times: FloatArray,
    rates: FloatArray,
    counts: IntArray,
    size: FloatArray,
    host: IntArray,
    ready: FloatArray,
    order: IntArray,
    target: int,
    aggregators: IntArray,
    at_most: float,
    at_least: float,
    vectors: float,
    begin: float,
    group_end: IntArray,
) -> int:
    """Return the best number of direct updates, -1 where nothing is feasible, -2 for no room.

    Writes, for each aggregator in turn, the place in `order` after its last member. An aggregate has the size
    of its largest member if `at_most` is 0, else that of all members, up to `at_most`. It is at
    least `at_least`.
    """
    n = len(order)
    k = len(aggregators)
    base_times, base_rates, base_counts = times.copy(), rates.copy(), counts.copy()
    my_times, my_rates, my_counts = times.copy(), rates.copy(), counts.copy()
    pieces = np.empty((2 * times.shape[1], 3))
    ends = np.zeros(max(k, 1), dtype=np.int64)
    best = np.inf
    best_sum = np.inf
    best_n = -1
    direct_last = begin
    direct_sum = 0.0
    for direct in range(n + 1):
        if direct > 0:
            g = order[direct - 1]
            e, _ = reserve(base_times, base_rates, base_counts, pieces, host[g], target, size[g], ready[g])
            if e == FULL:
                return -2
            direct_last = max(direct_last, e)
            direct_sum += direct_last
        if direct_last > best + SAME_MOMENT or direct_last == np.inf:
            break
        if k == 0 and direct < n:
            continue
        copy_into(base_times, base_rates, base_counts, my_times, my_rates, my_counts)
        last = direct_last
        total = direct_sum
        i = direct
        used = 0
        feasible = True
        for j in range(k):
            if i == n:
                break
            middle = aggregators[j]
            complete = begin
            members = 0
            largest = 0.0
            together = 0.0
            while i < n:
                g = order[i]
                e = finish(my_times, my_rates, my_counts, host[g], middle, size[g], ready[g])
                # The server must never idle; the last group takes what is left.
                if members > 0 and j < k - 1 and e > last + SAME_MOMENT:
                    break
                e, _ = reserve(my_times, my_rates, my_counts, pieces, host[g], middle, size[g], ready[g])
                if e == FULL:
                    return -2
                complete = max(complete, e)
                largest = max(largest, size[g])
                together += size[g]
                members += 1
                i += 1
                if complete > best + SAME_MOMENT:
                    break
            if complete > best + SAME_MOMENT or complete == np.inf:
                feasible = False
                break
            # The limit is one of sums: a single update is sent as it is.
            sent = max(largest if at_most <= 0.0 or members == 1 else min(together, at_most), at_least)
            if members > 1:
                sent *= vectors
            e, _ = reserve(my_times, my_rates, my_counts, pieces, middle, target, sent, complete)
            if e == FULL:
                return -2
            last = max(last, e)
            total += members * last
            ends[j] = i
            used = j + 1
            if last > best + SAME_MOMENT or last == np.inf:
                feasible = False
                break
        if not feasible or i < n:
            continue
        if last < best - SAME_MOMENT or (last <= best + SAME_MOMENT and total < best_sum - SAME_MOMENT):
            best = min(best, last)
            best_sum = total
            best_n = direct
            for j in range(k):
                group_end[j] = ends[j] if j < used else n
    return best_n
