"""Max-min fair sharing of links, compiled: no message can be faster but by making a slower one slower."""

import numpy as np

from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace.solver.compiled import compiled

# Links whose fair shares differ by rounding alone fill up together.
EQUAL = 1.0 + 1e-12


@compiled
def share(
    active: BoolArray,
    first_link: IntArray,
    second_link: IntArray,
    capacity: FloatArray,
    most: float,
    rates: FloatArray,
) -> None:
    """Write the max-min fair rate of every active flow, each on two links and none above `most`, to `rates`.

    Progressive filling: the link with the least fair share fixes its flows' rates; what they leave is shared
    on. O(links * (links + flows)).
    """
    flows, links = len(active), len(capacity)
    left = capacity.copy()
    counts = np.zeros(links, dtype=np.int64)
    open_flows = 0
    for flow in range(flows):
        rates[flow] = 0.0
        if active[flow]:
            counts[first_link[flow]] += 1
            counts[second_link[flow]] += 1
            rates[flow] = -1.0
            open_flows += 1
    while open_flows > 0:
        least = np.inf
        for link in range(links):
            if counts[link] > 0:
                least = min(least, left[link] / counts[link])
        capped = most <= least
        level = most if capped else least
        full = np.zeros(links, dtype=np.bool_)
        for link in range(links):
            full[link] = counts[link] > 0 and left[link] / counts[link] <= least * EQUAL
        for flow in range(flows):
            if rates[flow] == -1.0 and (capped or full[first_link[flow]] or full[second_link[flow]]):
                rates[flow] = level
                for link in (first_link[flow], second_link[flow]):
                    left[link] = max(left[link] - level, 0.0)
                    counts[link] -= 1
                open_flows -= 1


@compiled
def lay_links(
    workers: int,
    servers: int,
    streams: int,
    colocated: bool,
    first_link: IntArray,
    second_link: IntArray,
    local: BoolArray,
) -> None:
    """Write the two links of every flow: of pushes by worker, server and stream, then of pulls likewise.

    Links are workers up, workers down, and of servers on hosts of their own ingress and egress. A flow
    between a worker and the server on its own host is `local` and needs no link.
    """
    pulls = workers * servers * streams
    for worker in range(workers):
        for server in range(servers):
            ingress = workers + server if colocated else 2 * workers + server
            egress = server if colocated else 2 * workers + servers + server
            for stream in range(streams):
                flow = (worker * servers + server) * streams + stream
                first_link[flow], second_link[flow] = worker, ingress
                first_link[flow + pulls], second_link[flow + pulls] = egress, workers + worker
                local[flow] = local[flow + pulls] = colocated and worker == server
