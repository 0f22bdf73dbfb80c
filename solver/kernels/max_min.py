"""Max-min fair rates of connections that each cross two links, compiled."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled

_SAME = 1.0 + 1e-12  # fair shares within this factor are equal: they differ by rounding only


@compiled
def share(
    first: IntArray,
    second: IntArray,
    count: int,
    limit: FloatArray,
    weight: FloatArray,
    left: FloatArray,
    users: IntArray,
    load: FloatArray,
    rate: FloatArray,
) -> None:
    """Write the rates of the first `count` connections to `rate`; `left`, `users` and `load` are scratch.

    Connection c crosses the links ``first[c]`` and ``second[c]``, and shares them by its weight. `limit` is
    the rate of each link. Each round finds the smallest rate for a unit of weight on any link, and fixes the
    rates of all connections of the links that have it. So there are at most as many rounds as links.
    """
    for link in range(len(limit)):
        left[link] = limit[link]
        users[link] = 0
        load[link] = 0.0
    for c in range(count):
        users[first[c]] += 1
        users[second[c]] += 1
        load[first[c]] += weight[c]
        load[second[c]] += weight[c]
        rate[c] = -1.0
    missing = count
    while missing > 0:
        fair = np.inf
        for link in range(len(limit)):
            if users[link] > 0:
                fair = min(fair, left[link] / load[link])
        bound = fair * _SAME
        for c in range(count):
            if rate[c] >= 0.0:
                continue
            a, b = first[c], second[c]
            if left[a] <= bound * load[a] or left[b] <= bound * load[b]:
                rate[c] = fair * weight[c]
                missing -= 1
                for link in (a, b):
                    left[link] -= rate[c]
                    users[link] -= 1
                    load[link] -= weight[c]
