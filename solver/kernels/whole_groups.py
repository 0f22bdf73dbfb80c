"""Groups sent uncut, one after another: the earliest end of each set of gradients, compiled."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled
from pace.solver.kernels.partition import price


@compiled
def earliest_ends(
    ready: FloatArray,
    tail: FloatArray,
    sizes: FloatArray,
    dtypes: IntArray,
    knots: FloatArray,
    durations: FloatArray,
    slope: float,
    cap: float,
    window: float,
    ends: FloatArray,
    last: IntArray,
) -> None:
    """Write the earliest end of each set of gradients to `ends` and its last group to `last`, in O(3^n).

    Bit i of a set is gradient i. Every group must end by `window` less its tail. A set for which this is
    impossible has an end of infinity. `cap` is the largest size of a group of several gradients.
    """
    full = len(ends)
    of_ready, of_tail, takes = np.zeros(full), np.zeros(full), np.full(full, np.inf)
    for group in range(1, full):
        total, dtype, count, fits = 0.0, -1, 0, True
        for i in range(len(sizes)):
            if group >> i & 1:
                of_ready[group] = max(of_ready[group], ready[i])
                of_tail[group] = max(of_tail[group], tail[i])
                total += sizes[i]
                count += 1
                fits = fits and (dtype < 0 or dtype == dtypes[i])
                dtype = dtypes[i]
        if fits and (count == 1 or total <= cap):
            takes[group] = price(total, knots, durations, slope)
    ends[:] = np.inf
    ends[0] = 0.0
    for sent in range(full):
        if not np.isfinite(ends[sent]):
            continue
        left = full - 1 - sent
        group = left
        while group > 0:
            end = max(ends[sent], of_ready[group]) + takes[group]
            if end < ends[sent | group] and end + of_tail[group] <= window:
                ends[sent | group] = end
                last[sent | group] = group
            group = (group - 1) & left
