"""How large the parts are that workers push and pull, and which server has each.

Theorem. Let every pull take the same multiple of its push: d_j = kappa u_j. In the fluid limit, with parts of
vanishing size and free preemption, longest tail first on both links attains
T* = max(C*(r, u, q), C*(r, d, q)), with C* the optimum of one link, and no order does better. Parts of delta
bytes cost at most sum(ceil(s / delta)) theta + theta + 2 delta / B more. (ByteScheduler, SOSP 2019: its
Theorem 1 is the fluid limit on a chain of layers; its bound on parts prints floor for ceil, which three
tensors of half a part disprove.)
"""

import heapq
import math

import numpy as np

from pace.solver.arrays import IntArray


def best_partition_bytes(
    total_bytes: float, *, lost_s: float, bytes_per_s: float, num_servers: int = 1
) -> float:
    """Return the size of a part, in bytes, that minimizes the time lost with equal workers in lock step.

    With delta bytes a part, M theta / delta is lost by M / delta parts that each lose theta seconds, and
    2 S delta / B is the lag of the last part: S parts are under way at a time, each S times as long. The
    minimum is at delta0 = sqrt(M theta B / (2 S)).

    Parameters
    ----------
    total_bytes
        M, the bytes of all parts.
    lost_s
        theta, the seconds that each part loses.
    bytes_per_s
        B, the rate of a worker's link.
    num_servers
        S, the servers over which whole parts are spread.
    """
    return math.sqrt(total_bytes * lost_s * bytes_per_s / (2 * num_servers))


def least_loaded(sizes_bytes: IntArray, num_servers: int) -> IntArray:
    """Return the server of each part: in their order, each goes to the server with the fewest bytes so far.

    Ties go to the server with the smaller number, so every rank computes the same placement. After any prefix
    of the parts, the servers' loads differ by at most the largest part in it. The result has the shape of
    `sizes_bytes`.
    """
    load = [(0, server) for server in range(num_servers)]
    placed = np.empty(len(sizes_bytes), dtype=np.int64)
    for number, size in enumerate(np.asarray(sizes_bytes).tolist()):
        filled, server = load[0]
        placed[number] = server
        heapq.heapreplace(load, (filled + size, server))
    return placed
