"""Placement of tensors on servers: each goes where the fewest bytes are so far."""

from collections.abc import Sequence


def least_bytes_servers(sizes_bytes: Sequence[float], num_servers: int) -> tuple[int, ...]:
    """Return a server for every tensor, taken in order: the one with the least bytes, on a tie the first.

    This is TensorFlow's ``GreedyLoadBalancingStrategy`` with byte sizes; the largest load is at most twice
    the best possible one (Graham 1966).
    """
    load = [0.0] * num_servers
    servers = []
    for size in sizes_bytes:
        server = min(range(num_servers), key=lambda at: (load[at], at))
        load[server] += size
        servers.append(server)
    return tuple(servers)
