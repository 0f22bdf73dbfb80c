"""Where groups are cut and which call goes when, by random changes, compiled (``pace.solver.loaded``)."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled
from pace.solver.kernels.loaded import mean_window, room_for
from pace.solver.kernels.partition import aligned, most_within
from pace.solver.kernels.search import RandomState, draw
from pace.solver.loaded import CallCosts, Compute, Knots, LoadedWindows

# With so many changes, a search may first accept plans that are longer by up to a share `WANDERING`.
ENOUGH_TO_WANDER = 1000
WANDERING = 0.03


@compiled
def settle(
    groups: IntArray, counts: IntArray, calls: int, element_bytes: FloatArray, most_bytes: float
) -> int:
    """Align all calls but the last of each group, which takes the rest, and drop those without elements.

    Returns the number of calls; -1 if one has more than `most_bytes`.
    """
    last = np.full(len(element_bytes), -1, dtype=np.int64)
    for call in range(calls):
        if counts[call] > 0:
            last[groups[call]] = call
    kept = 0 * calls
    for call in range(calls):
        group = groups[call]
        if last[group] != call:
            rest = counts[call] - aligned(counts[call], element_bytes[group])
            counts[call] -= rest
            counts[last[group]] += rest
        if counts[call] > 1 and counts[call] * element_bytes[group] > most_bytes:
            return -1
        if counts[call] > 0:
            groups[kept], counts[kept] = group, counts[call]
            if last[group] == call:
                last[group] = kept
            kept += 1
    return kept


@compiled
def moved(
    count: int,
    element_bytes: float,
    start: float,
    arrival: FloatArray,
    cost: Knots,
    state: RandomState,
) -> int:
    """Return how many of a call's `count` elements are sent elsewhere: drawn at random.

    Among others so many that the call ends when a group arrives, or that it has the size of a knot.
    """
    kind = draw(state, 6)
    if kind == 0:
        return count
    if kind == 1:
        return count // 2
    if kind == 2:
        return 1 + draw(state, count)
    if kind <= 4 or len(cost[0]) == 1:
        spare = arrival[draw(state, len(arrival))] - start
        fitting = most_within(max(spare, 0.0), *cost) / element_bytes
        return count - int(min(fitting, float(count))) if kind == 3 else int(min(fitting, float(count)))
    knot = int(min(cost[0][draw(state, len(cost[0]))] / element_bytes, float(count)))
    return count - knot if draw(state, 2) == 0 else knot


@compiled
def recut(
    ready: FloatArray,
    spread: FloatArray,
    tail: FloatArray,
    by_tail: IntArray,
    element_bytes: FloatArray,
    costs: CallCosts,
    compute: Compute,
    random: LoadedWindows,
    most_bytes: float,
    budget: int,
    seed: int,
    groups: IntArray,
    counts: IntArray,
    calls: int,
) -> int:
    """Send elements of one call in another one of its group, or at another place.

    A change is kept if the mean window is not longer. With a `budget` of `ENOUGH_TO_WANDER`, the first half
    of the changes may also make it longer, by a falling share. `groups` and `counts` are the first `calls`
    calls in the order in which they are sent, with room for more; they are changed in place. At most `budget`
    changes are priced.

    Returns the number of calls.
    """
    room = len(groups)
    state = np.array([seed], dtype=np.uint64)
    own_groups, own_counts = groups.copy(), counts.copy()
    own = calls
    sizes = np.empty(room)
    starts = np.empty(room)
    times = room_for(room, len(ready), len(random.slower))
    arrival = ready * random.slower[-1] + spread * random.lateness[-1]
    best_groups, best_counts = groups.copy(), counts.copy()
    best_calls = calls
    best, current, slack = np.inf, np.inf, 0.0
    enough = 0.0
    for window in range(len(random.slower)):
        computing = (compute.backward_s + compute.forward_s) * random.slower[window]
        enough += (computing + compute.backward_spread_s * random.lateness[window]) / len(random.slower)
    tries = 0 * calls
    priced = 0 * calls
    while priced <= budget and tries <= 8 * budget and best > enough * (1 + 1e-9):
        tries += 1
        if priced > 0:
            own = calls
            own_groups[:own], own_counts[:own] = groups[:own], counts[:own]
            source = draw(state, own)
            group = own_groups[source]
            count = moved(
                own_counts[source],
                element_bytes[group],
                starts[source],
                arrival,
                costs.cost,
                state,
            )
            count = min(count, own_counts[source])
            if count <= 0:
                continue
            place = draw(state, own + 1)
            joins = draw(state, 2) == 0 and place < own and place != source and own_groups[place] == group
            own_counts[source] -= count
            if joins:
                own_counts[place] += count
            elif own == room:
                continue
            else:
                for call in range(own, place, -1):
                    own_groups[call], own_counts[call] = own_groups[call - 1], own_counts[call - 1]
                own_groups[place], own_counts[place] = group, count
                own += 1
            own = settle(own_groups, own_counts, own, element_bytes, most_bytes)
            if own < 0:
                continue
        for call in range(own):
            sizes[call] = own_counts[call] * element_bytes[own_groups[call]]
        mean = mean_window(
            ready,
            spread,
            tail,
            by_tail,
            own_groups[:own],
            sizes[:own],
            costs,
            compute,
            random,
            times,
        )
        priced += 1
        if budget >= ENOUGH_TO_WANDER:
            slack = max(0.0, WANDERING * (1 - 2 * priced / budget))
        if slack == 0.0 and current > best:
            current, calls = best, best_calls
            groups[:calls], counts[:calls] = best_groups[:calls], best_counts[:calls]
        if mean < current * (1 + slack) or (mean == current and own <= calls):
            current, calls = mean, own
            groups[:own], counts[:own] = own_groups[:own], own_counts[:own]
            starts[:own] = times.starts[:own]
        if mean < best or (mean == best and own <= best_calls):
            best, best_calls = mean, own
            best_groups[:own], best_counts[:own] = own_groups[:own], own_counts[:own]
    groups[:], counts[:] = best_groups, best_counts
    return best_calls
