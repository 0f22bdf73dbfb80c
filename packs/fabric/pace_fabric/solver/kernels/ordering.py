"""The strict ordering rule, compiled. ``pace_fabric.solver.plain_ordering`` is the same without the laziness.

Reservations only ever make a transfer end later, so an end computed earlier is a lower bound, and so is the
time from which the server's way down has anything left. Most candidates are refused by these two numbers
alone.
"""

import numpy as np

from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace.solver.compiled import compiled
from pace_fabric.solver.kernels.capacity import FULL, copy_into, finish, first_free, reserve, through

SAME_MOMENT = 1e-9
NEVER = 2**62
KEPT = 0
EXPIRED = 1
INFEASIBLE = 2
OVERTAKEN = 3
UNDELIVERABLE = 4
DROP = 0
HOLD = 1
DOWNWEIGHT = 2


@compiled
def earliest(
    times: FloatArray,
    rates: FloatArray,
    counts: IntArray,
    size: FloatArray,
    host: IntArray,
    ready: FloatArray,
    server: int,
    alone: FloatArray,
    bound: FloatArray,
    free: FloatArray,
    among: BoolArray,
) -> tuple[int, float]:
    """Return the candidate that ends first, and its end; of equal ends the first in the batch.

    `bound` holds a lower bound of each end and is raised; `alone` is each transfer's shortest duration,
    `free` when each host's way up first has anything left.
    """
    n = len(size)
    least_size = np.inf
    for g in range(n):
        if among[g] and size[g] > 0.0 and host[g] != server:
            least_size = min(least_size, size[g])
    open_from, arrived = np.inf, np.inf
    if least_size < np.inf:
        open_from, arrived = through(times, rates, counts, 2 * server + 1, least_size)
    first = -1
    for g in range(n):
        if among[g]:
            if host[g] != server and size[g] > 0.0:
                begin = max(max(open_from, free[host[g]]), ready[g])
                bound[g] = max(bound[g], max(arrived, begin + alone[g]))
            if first < 0 or bound[g] < bound[first]:
                first = g
    best = np.inf
    if first >= 0:
        bound[first] = finish(times, rates, counts, host[first], server, size[first], ready[first])
        best = bound[first]
    for g in range(n):
        if among[g] and g != first and bound[g] < best:
            bound[g] = finish(times, rates, counts, host[g], server, size[g], ready[g])
            best = min(best, bound[g])
    for g in range(n):
        if among[g] and bound[g] <= best + SAME_MOMENT:
            bound[g] = finish(times, rates, counts, host[g], server, size[g], ready[g])
            if bound[g] <= best + SAME_MOMENT:
                return g, bound[g]
    return -1, np.inf


@compiled
def rank_by_end(order: IntArray, end: FloatArray, num: int, ranked: IntArray) -> None:
    """Write `order` by end; of ends that are the same moment the one that was picked first goes first."""
    for place in range(num):
        g = order[place]
        at = place
        while at > 0 and end[g] < end[ranked[at - 1]] - SAME_MOMENT:
            ranked[at] = ranked[at - 1]
            at -= 1
        ranked[at] = g


@compiled
def insert_by_end(
    ranked: IntArray, num: int, g: int, end: FloatArray, limit: IntArray, place_of: IntArray
) -> int:
    """Insert `g` into the `num` updates that are ranked by end.

    Returns the first place of picking of an update that is thereby beyond its limit, or the greatest integer.
    """
    late = NEVER
    at = num
    while at > 0 and end[g] < end[ranked[at - 1]] - SAME_MOMENT:
        moved = ranked[at - 1]
        ranked[at] = moved
        if at + 1 > limit[moved]:
            late = min(late, int(place_of[moved]))
        at -= 1
    ranked[at] = g
    return late


@compiled
def is_settled(
    ranked: IntArray, num: int, end: FloatArray, picked_at: IntArray, place: int, open_from: float
) -> bool:
    """Return whether nothing that is still to be picked can overtake what was picked up to `place`."""
    for at in range(num - 1, -1, -1):
        g = ranked[at]
        if end[g] <= open_from:
            return True
        if picked_at[g] <= place:
            return False
    return True


@compiled
def strict(
    times: FloatArray,
    rates: FloatArray,
    counts: IntArray,
    size: FloatArray,
    host: IntArray,
    ready: FloatArray,
    deadline: IntArray,
    server: int,
    late: int,
    order: IntArray,
    end: FloatArray,
    fate: IntArray,
    witness: BoolArray,
) -> int:
    """Order so that no kept update commits after its deadline; returns how many are kept, or -1 for no room.

    Writes the order of picking, the planned ends, what became of each update, and for each dropped one the
    updates that are why.
    """
    n = len(size)
    my_times, my_rates, my_counts = times.copy(), rates.copy(), counts.copy()
    pieces = np.empty((2 * times.shape[1], 3))
    alone = np.empty(n)
    first = np.empty(n)
    limit = deadline.copy()
    live = np.ones(n, dtype=np.bool_)
    instant = False  # something that needs no link can end at any moment
    most_down = rates[2 * server + 1, : counts[2 * server + 1]].max()
    for g in range(n):
        most = min(rates[2 * host[g], : counts[2 * host[g]]].max(), most_down)
        alone[g] = 0.0 if host[g] == server or size[g] <= 0.0 else size[g] / most if most > 0.0 else np.inf
        first[g] = finish(times, rates, counts, host[g], server, size[g], ready[g])
        instant = instant or host[g] == server or size[g] <= 0.0
        fate[g] = KEPT
        if first[g] == np.inf:
            fate[g] = UNDELIVERABLE
            live[g] = False
        elif limit[g] < 1:
            if late == DOWNWEIGHT:
                limit[g] = NEVER
            else:
                fate[g] = EXPIRED
                live[g] = False
    ranked = np.empty(n, dtype=np.int64)
    ks = np.unique(limit)
    count = np.zeros(len(ks), dtype=np.int64)
    place_of = np.searchsorted(ks, limit)
    left = np.empty(n, dtype=np.bool_)
    among = np.empty(n, dtype=np.bool_)
    bound = np.empty(n)
    free = np.empty(len(counts) // 2)
    forced_by = np.empty(n, dtype=np.int64)
    picked_at = np.empty(n, dtype=np.int64)
    same = 0
    while True:
        copy_into(times, rates, counts, my_times, my_rates, my_counts)
        bound[:] = first
        count[:] = 0
        num_left = 0
        for g in range(n):
            left[g] = live[g]
            if live[g]:
                count[place_of[g]] += 1
                num_left += 1
        for other in range(len(free)):
            free[other] = first_free(times, rates, counts, 2 * other)
        picked = 0
        again = False
        while picked < same:
            # These picks are as before: what was dropped took no part in them.
            g = order[picked]
            reserve(my_times, my_rates, my_counts, pieces, host[g], server, size[g], ready[g])
            free[host[g]] = first_free(my_times, my_rates, my_counts, 2 * host[g])
            insert_by_end(ranked, picked, g, end, limit, picked_at)
            picked += 1
            left[g] = False
            count[place_of[g]] -= 1
            num_left -= 1
        late_place = NEVER
        while num_left > 0 and not again:
            due = 0
            forced = -1
            for k in range(len(ks)):
                due += count[k]
                if ks[k] == NEVER or count[k] == 0:
                    continue
                slots = ks[k] - picked
                if due > slots:
                    # More updates than positions: the one that would end last goes.
                    worst = -1
                    worst_end = -1.0
                    for g in range(n):
                        if left[g] and limit[g] <= ks[k]:
                            bound[g] = finish(
                                my_times, my_rates, my_counts, host[g], server, size[g], ready[g]
                            )
                            worst_end = max(bound[g], worst_end)
                    for g in range(n):
                        if left[g] and limit[g] <= ks[k] and bound[g] >= worst_end - SAME_MOMENT:
                            worst = g
                    if late == DOWNWEIGHT:
                        limit[worst] = NEVER
                        ks = np.unique(limit)
                        count = np.zeros(len(ks), dtype=np.int64)
                        place_of = np.searchsorted(ks, limit)
                    else:
                        fate[worst] = INFEASIBLE
                        live[worst] = False
                        for g in range(n):
                            # Those that are picked already want these positions too.
                            witness[worst, g] = g != worst and live[g] and limit[g] <= ks[k]
                    again = True
                    same = 0
                    break
                if due == slots:
                    forced = k
                    break
            if again:
                break
            for g in range(n):
                among[g] = left[g] and (forced < 0 or limit[g] <= ks[forced])
            forced_by[picked] = NEVER if forced < 0 else ks[forced]
            g, _ = earliest(
                my_times, my_rates, my_counts, size, host, ready, server, alone, bound, free, among
            )
            ends, _ = reserve(my_times, my_rates, my_counts, pieces, host[g], server, size[g], ready[g])
            if ends == FULL:
                return -1
            if ends == np.inf:
                # What was booked before has left nothing that ever carries it.
                fate[g] = UNDELIVERABLE
                live[g] = False
                again = True
                same = 0
                break
            free[host[g]] = first_free(my_times, my_rates, my_counts, 2 * host[g])
            end[g] = ends
            order[picked] = g
            picked_at[g] = picked
            if late != HOLD:
                late_place = min(late_place, insert_by_end(ranked, picked, g, end, limit, picked_at))
            picked += 1
            left[g] = False
            count[place_of[g]] -= 1
            num_left -= 1
            if late_place < NEVER and not instant:
                open_from = first_free(my_times, my_rates, my_counts, 2 * server + 1)
                if is_settled(ranked, picked, end, picked_at, late_place, open_from):
                    break
        if again:
            continue
        if late_place == NEVER:
            return picked
        overtaken = late_place
        worst = order[overtaken]
        same = 0
        while same < overtaken and (forced_by[same] == NEVER or forced_by[same] < limit[worst]):
            same += 1
        if late == DOWNWEIGHT:
            limit[worst] = NEVER
            ks = np.unique(limit)
            count = np.zeros(len(ks), dtype=np.int64)
            place_of = np.searchsorted(ks, limit)
        else:
            fate[worst] = OVERTAKEN
            live[worst] = False
            for place in range(picked):
                g = ranked[place]
                if g == worst:
                    break
                witness[worst, g] = True
