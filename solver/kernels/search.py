"""Local search over partitions of gradients into groups, compiled; the oracle evaluates each step."""

import numpy as np
import numpy.typing as npt

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled
from pace.solver.kernels.jackson import serve
from pace.solver.kernels.partition import price

RandomState = npt.NDArray[np.uint64]


@compiled
def draw(state: RandomState, below: int) -> int:
    """Return a pseudo-random integer in [0, below): SplitMix64, the same on every machine."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return int(z % np.uint64(below))


@compiled
def objective_of(
    ready: FloatArray,
    processing: FloatArray,
    tail: FloatArray,
    critical: IntArray,
) -> float:
    """Return the oracle's objective and mark the jobs of a critical set in `critical`."""
    n = len(ready)
    by_ready = np.argsort(ready, kind="mergesort")
    by_rank = by_ready[np.argsort(-tail[by_ready], kind="mergesort")]
    jobs = np.empty(2 * n, dtype=np.int64)
    starts, ends = np.empty(2 * n), np.empty(2 * n)
    completion = np.empty(n)
    pieces, objective = serve(ready, processing, tail, by_ready, by_rank, jobs, starts, ends, completion)
    worst = 0
    for job in range(n):
        critical[job] = 0
        if completion[job] + tail[job] > completion[worst] + tail[worst]:
            worst = job
    critical[worst] = 1
    moment = completion[worst]
    for piece in range(pieces - 1, -1, -1):
        if ends[piece] > moment:
            continue
        if ends[piece] < moment or tail[jobs[piece]] < tail[worst]:
            break
        critical[jobs[piece]] = 1
        moment = starts[piece]
    return objective


@compiled
def evaluate(
    group_of: IntArray,
    ready: FloatArray,
    tail: FloatArray,
    sizes: FloatArray,
    knot_sizes: FloatArray,
    knot_durations: FloatArray,
    slope: float,
    max_group_bytes: float,
    critical: IntArray,
) -> float:
    """Return a partition's objective (inf if a group of several is too large); mark critical gradients."""
    n = len(group_of)
    place = np.full(n, -1, dtype=np.int64)
    group_ready, group_tail, group_bytes = np.zeros(n), np.zeros(n), np.zeros(n)
    members = np.zeros(n, dtype=np.int64)
    groups = 0
    for i in range(n):
        at = place[group_of[i]]
        if at < 0:
            at = groups
            place[group_of[i]] = at
            groups += 1
        group_ready[at] = max(group_ready[at], ready[i])
        group_tail[at] = max(group_tail[at], tail[i])
        group_bytes[at] += sizes[i]
        members[at] += 1
    processing = np.empty(groups)
    for at in range(groups):
        if group_bytes[at] > max_group_bytes and members[at] > 1:
            return np.inf
        processing[at] = price(group_bytes[at], knot_sizes, knot_durations, slope)
    marked = np.empty(groups, dtype=np.int64)
    objective = objective_of(group_ready[:groups], processing, group_tail[:groups], marked)
    for i in range(n):
        critical[i] = marked[place[group_of[i]]]
    return objective


@compiled
def free_group(group_of: IntArray) -> int:
    """Return an unused group number."""
    n = len(group_of)
    used = np.zeros(n + 1, dtype=np.bool_)
    for i in range(n):
        used[group_of[i]] = True
    for number in range(n):
        if not used[number]:
            return number
    return n


@compiled
def change(
    group_of: IntArray, dtypes: IntArray, orders: IntArray, places: IntArray, i: int, state: RandomState
) -> bool:
    """Change groups around gradient `i` at random: move, merge, swap or split. Return whether any changed."""
    n = len(group_of)
    axis = draw(state, 2)
    kind = draw(state, 6)
    own = group_of[i]
    if kind == 0:
        fresh = free_group(group_of)
        if fresh == n:
            return False
        for j in range(n):
            if group_of[j] == own and places[axis, j] > places[axis, i]:
                group_of[j] = fresh
        return True
    if kind == 1:
        fresh = free_group(group_of)
        if fresh == n:
            return False
        group_of[i] = fresh
        return True
    step = 1 + draw(state, 1 + draw(state, 16))
    place = places[axis, i] + (step if draw(state, 2) else -step)
    if place < 0 or place >= n:
        return False
    j = orders[axis, place]
    other = group_of[j]
    if other == own or dtypes[i] != dtypes[j]:
        return False
    if kind == 2:
        for k in range(n):
            if group_of[k] == own:
                group_of[k] = other
    elif kind == 3:
        group_of[j] = own
        group_of[i] = other
    else:
        group_of[i] = other
    return True


@compiled
def improve(
    group_of: IntArray,
    ready: FloatArray,
    tail: FloatArray,
    sizes: FloatArray,
    dtypes: IntArray,
    orders: IntArray,
    places: IntArray,
    knot_sizes: FloatArray,
    knot_durations: FloatArray,
    slope: float,
    max_group_bytes: float,
    enough: float,
    budget: int,
    seed: int,
) -> tuple[float, int]:
    """Improve `group_of` in place by at most `budget` oracle calls; return the objective and the calls made.

    Moves start at gradients of the critical set, because no other change can lower the objective. A move that
    keeps the objective is accepted too, so that several critical sets can be improved one after another.
    """
    n = len(group_of)
    state = np.array([seed], dtype=np.uint64)
    critical = np.zeros(n, dtype=np.int64)
    trial_critical = np.zeros(n, dtype=np.int64)
    best = evaluate(
        group_of, ready, tail, sizes, knot_sizes, knot_durations, slope, max_group_bytes, critical
    )
    trial = group_of.copy()
    calls = 1
    idle = 0
    while calls < budget and best > enough and idle < 100 * budget:
        idle += 1
        i = draw(state, n)
        if not critical[i] or not change(trial, dtypes, orders, places, i, state):
            continue
        value = evaluate(
            trial, ready, tail, sizes, knot_sizes, knot_durations, slope, max_group_bytes, trial_critical
        )
        calls += 1
        if value <= best:
            best = value
            group_of[:] = trial
            critical[:] = trial_critical
        else:
            trial[:] = group_of
    return best, calls
