"""Two links in a row, compiled: serving by rank, serving in a fixed order, improving an order."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled
from pace.solver.kernels.jackson import drop_first, push


@compiled
def serve_by_rank(
    ready: FloatArray, processing: FloatArray, by_ready: IntArray, by_rank: IntArray, starts: FloatArray
) -> None:
    """Serve jobs on one machine without preemption: a free machine takes the released job of lowest rank.

    Writes the start of each job, in seconds, to `starts`.
    """
    n = len(ready)
    rank = np.empty(n, dtype=np.int64)
    for place in range(n):
        rank[by_rank[place]] = place
    heap = np.empty(n + 1, dtype=np.int64)
    size = 0
    upcoming = 0
    now = 0.0
    for _ in range(n):
        if size == 0:
            now = max(now, ready[by_ready[upcoming]])
        while upcoming < n and ready[by_ready[upcoming]] <= now:
            push(heap, size, rank[by_ready[upcoming]])
            size += 1
            upcoming += 1
        job = by_rank[heap[0]]
        drop_first(heap, size)
        size -= 1
        starts[job] = now
        now += processing[job]


@compiled
def objective_in_order(
    ready: FloatArray, up: FloatArray, down: FloatArray, tail: FloatArray, order: IntArray
) -> float:
    """Return max(pull end + tail) when both links serve jobs strictly in one order."""
    free_up = 0.0
    free_down = 0.0
    objective = 0.0
    for place in range(len(order)):
        job = order[place]
        free_up = max(free_up, ready[job]) + up[job]
        free_down = max(free_down, free_up) + down[job]
        objective = max(objective, free_down + tail[job])
    return objective


@compiled
def reinsert(ready: FloatArray, up: FloatArray, down: FloatArray, tail: FloatArray, order: IntArray) -> float:
    """Move one job at a time to its best place until no move helps.

    Changes `order` in place and returns its objective. Each round takes O(n^3).
    """
    n = len(order)
    best = objective_in_order(ready, up, down, tail, order)
    trial = np.empty(n, dtype=np.int64)
    improved = True
    while improved:
        improved = False
        for source in range(n):
            job = order[source]
            place_of_best = -1
            for target in range(n):
                if target == source:
                    continue
                at = 0
                for place in range(n):
                    if at == target:
                        trial[at] = job
                        at += 1
                    if place != source:
                        trial[at] = order[place]
                        at += 1
                if at < n:
                    trial[at] = job
                value = objective_in_order(ready, up, down, tail, trial)
                if value < best * (1.0 - 1e-12):
                    best = value
                    place_of_best = target
            if place_of_best >= 0:
                improved = True
                at = 0
                for place in range(n):
                    if at == place_of_best:
                        trial[at] = job
                        at += 1
                    if place != source:
                        trial[at] = order[place]
                        at += 1
                if at < n:
                    trial[at] = job
                order[:] = trial
    return best


@compiled
def insert_one_by_one(
    ready: FloatArray, up: FloatArray, down: FloatArray, tail: FloatArray, seed: IntArray, order: IntArray
) -> None:
    """Build `order`: insert each job of `seed` where the objective of the jobs inserted so far is least."""
    n = len(seed)
    trial = np.empty(n, dtype=np.int64)
    for count in range(n):
        best = np.inf
        best_place = count
        for target in range(count, -1, -1):
            trial[:target] = order[:target]
            trial[target] = seed[count]
            trial[target + 1 : count + 1] = order[target:count]
            value = objective_in_order(ready, up, down, tail, trial[: count + 1])
            if value < best:
                best = value
                best_place = target
        for place in range(count, best_place, -1):
            order[place] = order[place - 1]
        order[best_place] = seed[count]
