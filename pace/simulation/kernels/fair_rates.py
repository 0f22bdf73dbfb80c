"""Max-min fair rates by progressive filling, compiled."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled


@compiled
def fill(source: IntArray, target: IntArray, left: FloatArray, rates: FloatArray) -> None:
    """Write each transfer's rate; `left` holds each link's capacity and is used up.

    Link ``2 h`` is host h's way up, ``2 h + 1`` its way down. The link with the least share for each of its
    transfers is the next to be full; those transfers get that share.
    """
    num = len(source)
    open_ = np.ones(num, dtype=np.bool_)
    users = np.zeros(len(left), dtype=np.int64)
    for i in range(num):
        users[2 * source[i]] += 1
        users[2 * target[i] + 1] += 1
    remaining = num
    while remaining > 0:
        share = np.inf
        full = -1
        for link in range(len(left)):
            if users[link] > 0 and left[link] / users[link] < share:
                share = left[link] / users[link]
                full = link
        for i in range(num):
            if open_[i] and (2 * source[i] == full or 2 * target[i] + 1 == full):
                open_[i] = False
                rates[i] = share
                remaining -= 1
                for link in (2 * source[i], 2 * target[i] + 1):
                    users[link] -= 1
                    left[link] = max(left[link] - share, 0.0)
