"""How large the parts are that workers push and pull.

Theorem. Let every pull take the same multiple of its push: d_j = kappa u_j. In the fluid limit, with parts of
vanishing size and free preemption, longest tail first on both links attains
T* = max(C*(r, u, q), C*(r, d, q)), with C* the optimum of one link, and no order does better. Parts of delta
bytes cost at most sum(ceil(s / delta)) theta + theta + 2 delta / B more. (ByteScheduler, SOSP 2019: its
Theorem 1 is the fluid limit on a chain of layers; its bound on parts prints floor for ceil, which three
tensors of half a part disprove.)
"""

import math


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
