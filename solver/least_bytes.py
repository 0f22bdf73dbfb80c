"""Placement of tensors or parts on servers: each goes to the server with the fewest bytes so far."""

import heapq
from collections.abc import Sequence

import numpy as np

from pace.solver.arrays import IntArray


def least_bytes_servers(sizes_bytes: Sequence[float], num_servers: int) -> tuple[int, ...]:
    """Return the server of each tensor: in their order, each goes to the server with the fewest bytes so far.

    Ties go to the server with the smaller number, so every rank computes the same placement. After any prefix
    of the tensors, the servers' loads differ by at most the largest tensor in it.
    This is TensorFlow's ``GreedyLoadBalancingStrategy`` with byte sizes. The largest load is at most twice
    the best possible one (Graham 1966).
    """
    load = [(0.0, server) for server in range(num_servers)]
    servers = []
    for size in sizes_bytes:
        filled, server = load[0]
        servers.append(server)
        heapq.heapreplace(load, (filled + size, server))
    return tuple(servers)


def least_loaded(sizes_bytes: IntArray, num_servers: int) -> IntArray:
    """Return the same as ``least_bytes_servers``, from and as an array of shape (num_tensors,)."""
    return np.array(least_bytes_servers(sizes_bytes.tolist(), num_servers), dtype=np.int64)
