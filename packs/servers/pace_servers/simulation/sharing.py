"""Max-min fair sharing of links, compiled: no message can be faster unless a slower one becomes slower."""

import numpy as np

from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace.solver.compiled import compiled_in_place

# Links whose fair shares differ by rounding alone fill up together.
EQUAL = 1.0 + 1e-12


@compiled_in_place
def share(
    active: IntArray,
    count: int,
    first_link: IntArray,
    second_link: IntArray,
    capacity: FloatArray,
    most: float,
    rates: FloatArray,
    left: FloatArray,
    counts: IntArray,
    full: BoolArray,
) -> None:
    """Write the max-min fair rates of the first `count` `active` flows to `rates`, none above `most`.

    Progressive filling: the link with the smallest fair share fixes the rates of its flows, and the other
    flows share the rest. `left`, `counts` and `full` are scratch space, one entry for each link. Takes
    O(links * (links + flows)).
    """
    links = len(capacity)
    for link in range(links):
        left[link], counts[link] = capacity[link], 0
    open_flows = count
    for flow in active[:count]:
        counts[first_link[flow]] += 1
        counts[second_link[flow]] += 1
        rates[flow] = -1.0
    while open_flows > 0:
        least = np.inf
        for link in range(links):
            if counts[link] > 0:
                least = min(least, left[link] / counts[link])
        capped = most <= least
        level = most if capped else least
        for link in range(links):
            full[link] = counts[link] > 0 and left[link] / counts[link] <= least * EQUAL
        for flow in active[:count]:
            if rates[flow] == -1.0 and (capped or full[first_link[flow]] or full[second_link[flow]]):
                rates[flow] = level
                for link in (first_link[flow], second_link[flow]):
                    left[link] = max(left[link] - level, 0.0)
                    counts[link] -= 1
                open_flows -= 1
