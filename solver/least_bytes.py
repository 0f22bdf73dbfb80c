"""Placement of tensors on servers: each goes to the server with the fewest bytes so far."""

from collections.abc import Sequence


def least_bytes_servers(sizes_bytes: Sequence[float], num_servers: int) -> tuple[int, ...]:
    """Return the server of each tensor: in their order, each goes to the server with the fewest bytes so far.

    On a tie it goes to the first of them.
    This is TensorFlow's ``GreedyLoadBalancingStrategy`` with byte sizes. The largest load is at most twice
    the best possible one (Graham 1966).
    """
    load = [0.0] * num_servers
    servers = []
    for size in sizes_bytes:
        server = min(range(num_servers), key=lambda at: (load[at], at))
        load[server] += size
        servers.append(server)
    return tuple(servers)
