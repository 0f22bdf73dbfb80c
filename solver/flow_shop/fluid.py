"""Sizes and places of parts that are pushed and pulled.

Theorem. Let every pull take the same multiple of its push: d_j = kappa u_j. In the fluid limit, with parts of
vanishing size and free preemption, longest tail first on both links attains
T* = max(C*(r, u, q), C*(r, d, q)), with C* the optimum of one link, and no order does better. Parts of delta
bytes cost at most sum(ceil(s / delta)) theta + theta + 2 delta / B more. (ByteScheduler, SOSP 2019,
Theorem 1, prints floor for ceil, which three tensors of half a part disprove.)
"""

import heapq
import math

import numpy as np

from pace.solver.arrays import IntArray


def best_partition_bytes(
    total_bytes: float, *, lost_s: float, bytes_per_s: float, num_servers: int = 1
) -> float:
    """Return delta0 = sqrt(M theta B / (2 S)): where time lost per part and the last part's lag balance.

    Derivative of M theta / delta + 2 S delta / B. Whole parts on S servers, workers in lock step: a part
    takes S times as long, S at a time.
    """
    return math.sqrt(total_bytes * lost_s * bytes_per_s / (2 * num_servers))


def least_loaded(sizes_bytes: IntArray, num_servers: int) -> IntArray:
    """Place parts, in their order, each on the server with least bytes so far; ties by number.

    Any prefix is balanced within its largest part, whatever the order: every rank derives the same map.
    """
    load = [(0, server) for server in range(num_servers)]
    placed = np.empty(len(sizes_bytes), dtype=np.int64)
    for number, size in enumerate(np.asarray(sizes_bytes).tolist()):
        filled, server = load[0]
        placed[number] = server
        heapq.heapreplace(load, (filled + size, server))
    return placed
