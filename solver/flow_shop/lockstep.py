"""When planned parts are pushed and pulled by equal workers in lock step.

All workers do the same at the same time, so one is computed for all. It has one connection to each server,
and each connection carries one message at a time. Messages in flight share the worker's link evenly, up to
each worker's share of a server's link. If the workers' hosts are the servers, messages share the links
between hosts max-min fairly, and a part has arrived when its last copy has: exact for two workers, close for
more. A part can be pulled `latency_s` after its push has ended: by then the same push of all other workers
has ended too.
"""

import math
from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLinks:
    """The links that one worker's messages share.

    Attributes
    ----------
    num_servers
        Number of connections; each carries one message at a time in each direction.
    bytes_per_s
        Rate of the worker's link, in each direction.
    connection_bytes_per_s
        Highest rate of one connection in one direction.
    overhead_bytes
        Bytes added to every message, for the link time that each message loses.
    latency_s
        Time from the end of a push to the earliest start of its pull.
    colocated_workers
        Number of workers that share their hosts and links with the servers, so that pushes and pulls share
        links; 0 if servers have hosts of their own. `bytes_per_s` is then the rate at which a worker sends
        and receives together if all hosts are busy, and the rate of a host's link is ``(workers - 1) *
        connection_bytes_per_s``.
    """

    num_servers: int
    bytes_per_s: float
    connection_bytes_per_s: float
    overhead_bytes: float = 0.0
    latency_s: float = 0.0
    colocated_workers: int = 0

    @property
    def shared(self) -> bool:
        """Whether pushes and pulls share links."""
        return self.colocated_workers > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LockstepTimes:
    """When each part's push and pull start and end: arrays of shape (num_parts,), in seconds."""

    push_starts: FloatArray
    push_ends: FloatArray
    pull_starts: FloatArray
    pull_ends: FloatArray


def send_in_lockstep(
    links: SharedLinks,
    *,
    ready: FloatArray,
    sizes: FloatArray | IntArray,
    server: IntArray,
    pull_sizes: FloatArray | IntArray | None = None,
    in_order: bool = False,
) -> LockstepTimes:
    """Return when each part is pushed and pulled, in O(parts * servers).

    Parts are listed in planned order. Servers without a part take no time.

    Parameters
    ----------
    ready, sizes, server : arrays of shape (num_parts,)
        When each part may be pushed (seconds), its bytes and the number of its server. Of the parts that wait
        for a connection, the one listed first goes first.
    pull_sizes : array of shape (num_parts,)
        Bytes of each pull (default: `sizes`).
    in_order
        Whether a connection waits for the part planned next. Otherwise it takes any part that is ready.
    """
    from pace.solver.kernels import lockstep as kernel

    times = np.zeros((4, len(ready)))
    server = np.asarray(server, dtype=np.int64)
    up = np.asarray(sizes, dtype=np.float64) + links.overhead_bytes
    down = up if pull_sizes is None else np.asarray(pull_sizes, dtype=np.float64) + links.overhead_bytes
    kernel.send_in_lockstep(
        np.asarray(ready, dtype=np.float64),
        up,
        down,
        server,
        np.arange(len(ready), dtype=np.int64),
        int(server.max(initial=-1)) + 1,  # the rest has nothing to do
        links.bytes_per_s,
        links.connection_bytes_per_s,
        links.colocated_workers,
        links.latency_s,
        in_order,
        times,
    )
    return LockstepTimes(push_starts=times[0], push_ends=times[1], pull_starts=times[2], pull_ends=times[3])


# 6 gradients have 4,683 ordered groupings, 8 have 40,320 orders: a fraction of a second.
MOST_GROUPED = 6
MOST_ORDERED = 8
# An order counts as faster if the window is shorter by more than this, relative to its length.
PRECISION = 1e-9


def best_whole_order(
    links: SharedLinks,
    *,
    ready: FloatArray,
    tail: FloatArray,
    sizes: IntArray,
    dtypes: IntArray,
    push_bytes: FloatArray,
    pull_bytes: FloatArray,
    enough: float,
    faster_than: float,
    max_group_bytes: int | None = None,
) -> list[list[int]] | None:
    """Return the groups, in sending order, whose window is shortest if no group is cut.

    Exact among orders in which each group goes to the server with the fewest bytes so far and no connection
    idles while a group waits for it. With up to `MOST_GROUPED` gradients all groupings are tried, with up to
    `MOST_ORDERED` only groups of one gradient.

    Parameters
    ----------
    ready, tail : arrays of shape (num_gradients,)
        Seconds.
    sizes, push_bytes, pull_bytes : arrays of shape (num_gradients,)
        Bytes of each gradient in memory, pushed and pulled.
    dtypes : array of shape (num_gradients,)
        Number of each gradient's type. Only gradients of one type share a group.
    enough
        Stop at a window of this length in seconds, for example a proven lower bound.
    faster_than
        A window in seconds that the result must beat.
    max_group_bytes
        Largest size of a group of several gradients.

    Returns
    -------
    list of list of int, or None
        The gradients of each group; None if no window is below `faster_than` or there are too many gradients.
    """
    from pace.solver.kernels import whole_orders as kernel

    count = len(ready)
    if not 0 < count <= MOST_ORDERED:
        return None
    allowed = np.zeros(1 << count, dtype=np.int64)
    for group in range(1, 1 << count):
        members = [number for number in range(count) if group >> number & 1]
        allowed[group] = len(members) == 1 or (
            count <= MOST_GROUPED
            and len(set(dtypes[members].tolist())) == 1
            and (max_group_bytes is None or sizes[members].sum() <= max_group_bytes)
        )
    best = np.zeros(count, dtype=np.int64)
    found = kernel.best_whole_order(
        ready,
        tail,
        sizes,
        push_bytes,
        pull_bytes,
        allowed,
        min(links.num_servers, count),
        links.bytes_per_s,
        links.connection_bytes_per_s,
        links.overhead_bytes,
        links.colocated_workers,
        links.latency_s,
        enough,
        faster_than * (1 - PRECISION),
        best,
    )
    groups = [[number for number in range(count) if group >> number & 1] for group in best[:found].tolist()]
    return groups or None


def best_partition_bytes(
    total_bytes: float, *, lost_s: float, bytes_per_s: float, num_servers: int = 1
) -> float:
    """Return the size of a part, in bytes, that minimizes the time lost with equal workers in lock step.

    With delta bytes a part, M theta / delta is lost by M / delta parts that each lose theta seconds, and
    2 S delta / B is the lag of the last part: S parts are under way at a time, each S times as long. The
    minimum is at delta0 = sqrt(M theta B / (2 S)).

    Theorem. Let every pull take the same multiple of its push: d_j = kappa u_j. In the fluid limit, with
    parts of vanishing size and free preemption, longest tail first on both links attains
    T* = max(C*(r, u, q), C*(r, d, q)), with C* the optimum of one link, and no order does better. Parts of
    delta bytes cost at most sum(ceil(s / delta)) theta + theta + 2 delta / B more. (ByteScheduler, SOSP 2019:
    its Theorem 1 is the fluid limit on a chain of layers; its bound on parts prints floor for ceil, which
    three tensors of half a part disprove.)

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
