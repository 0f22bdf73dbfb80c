"""Max-min fair rates of connections that each cross two links, compiled."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled

_SAME = 1.0 + 1e-12  # two fair shares that differ by rounding only are one


@compiled
def share(
    first: IntArray,
    second: IntArray,
    count: int,
    limit: FloatArray,
    left: FloatArray,
    users: IntArray,
    rate: FloatArray,
) -> None:
    """Write the rates of the first `count` connections to `rate`; `left` and `users` are scratch.

    Connection c crosses the links ``first[c]`` and ``second[c]``. Each round finds the smallest fair share of
    any link and freezes the connections of every link that has it, so there are at most as many rounds as
    links.
    """
    for link in range(len(limit)):
        left[link] = limit[link]
        users[link] = 0
    for c in range(count):
        users[first[c]] += 1
        users[second[c]] += 1
        rate[c] = -1.0
    missing = count
    while missing > 0:
        fair = np.inf
        for link in range(len(limit)):
            if users[link] > 0:
                fair = min(fair, left[link] / users[link])
        bound = fair * _SAME
        for c in range(count):
            if rate[c] >= 0.0:
                continue
            a, b = first[c], second[c]
            if left[a] <= bound * users[a] or left[b] <= bound * users[b]:
                rate[c] = fair
                missing -= 1
                left[a] -= fair
                left[b] -= fair
                users[a] -= 1
                users[b] -= 1
