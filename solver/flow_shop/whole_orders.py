"""The best order of uncut groups on parameter servers, for few gradients: all orders are tried."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.flow_shop.lockstep import SharedLinks

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
        links.num_servers,
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
