"""First in, first out: the partition of a chain whose last group ends earliest, compiled."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled
from pace.solver.kernels.partition import price


@compiled
def earliest_ends(
    ready: FloatArray,
    ends: FloatArray,
    first: IntArray,
    sizes: FloatArray,
    durations: FloatArray,
    slope: float,
    start_of: IntArray,
) -> float:
    """Return the earliest end of the chain; write the start of the run that ends at i to ``start_of[i]``.

    If a prefix ends earlier, what follows never ends later, so one number for each prefix is enough. A run
    that begins earlier is longer, so the scan stops where its duration alone is too long.
    """
    n = len(ready)
    end = np.zeros(n + 1)
    for j in range(n):
        best = np.inf
        for i in range(j, first[j] - 1, -1):
            duration = price(ends[j + 1] - ends[i], sizes, durations, slope)
            if ready[j] + duration >= best:
                break
            finish = max(end[i], ready[j]) + duration
            if finish < best:
                best = finish
                start_of[j] = i
        end[j + 1] = best
    return float(end[n])
