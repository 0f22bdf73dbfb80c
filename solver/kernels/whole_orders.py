"""The best order of uncut groups on parameter servers, by trying all orders, compiled."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled
from pace.solver.kernels.lockstep import send_in_lockstep


@compiled
def best_whole_order(
    ready: FloatArray,
    tail: FloatArray,
    sizes: IntArray,
    push_bytes: FloatArray,
    pull_bytes: FloatArray,
    allowed: IntArray,
    num_servers: int,
    link_rate: float,
    connection_rate: float,
    overhead: float,
    colocated_workers: int,
    latency: float,
    enough: float,
    window: float,
    best: IntArray,
) -> int:
    """Write the groups of the fastest order to `best`; return their number, 0 if none is below `window`.

    Bit i of a group is gradient i, and ``allowed[group]`` tells whether it may be sent. Stops at a window of
    at most `enough`.
    """
    full = len(allowed) - 1
    count = len(ready)
    of_ready, of_tail, of_size = np.zeros(full + 1), np.zeros(full + 1), np.zeros(full + 1, dtype=np.int64)
    up, down = np.full(full + 1, overhead), np.full(full + 1, overhead)
    for group in range(1, full + 1):
        for i in range(count):
            if group >> i & 1:
                of_ready[group] = max(of_ready[group], ready[i])
                of_tail[group] = max(of_tail[group], tail[i])
                of_size[group] += sizes[i]
                up[group] += push_bytes[i]
                down[group] += pull_bytes[i]
    # Place k of the order takes each subset of the gradients that are left, from the largest to the empty
    # one.
    chosen, left = np.zeros(count + 1, dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
    server, load = np.zeros(count, dtype=np.int64), np.zeros(num_servers, dtype=np.int64)
    by_rank, times = np.arange(count), np.zeros((4, count))
    left[0] = full
    chosen[0] = full
    found, place = 0, 0
    while place >= 0:
        group = chosen[place]
        if group == 0:
            place -= 1
            if place >= 0:
                chosen[place] = (chosen[place] - 1) & left[place]
            continue
        if allowed[group] == 0:
            chosen[place] = (group - 1) & left[place]
            continue
        rest = left[place] & ~group
        if rest:
            place += 1
            left[place] = chosen[place] = rest
            continue
        groups = chosen[: place + 1]
        load[:] = 0
        for at in range(place + 1):
            least = 0
            for number in range(1, num_servers):
                if load[number] < load[least]:
                    least = number
            server[at] = least
            load[least] += of_size[groups[at]]
        send_in_lockstep(
            of_ready[groups],
            up[groups],
            down[groups],
            server[: place + 1],
            by_rank[: place + 1],
            num_servers,
            link_rate,
            connection_rate,
            colocated_workers,
            latency,
            False,
            times,
        )
        ends = 0.0
        for at in range(place + 1):
            ends = max(ends, times[3, at] + of_tail[groups[at]])
        if ends < window:
            window = ends
            found = place + 1
            best[:found] = groups
            if window <= enough:
                break
        chosen[place] = (group - 1) & left[place]
    return found
