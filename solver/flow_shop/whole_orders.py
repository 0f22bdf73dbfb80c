"""The best order of whole groups on parameter servers: all orders are tried, for few gradients."""

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
    """Return groups in the order in which they are sent whole with the shortest window, or None.

    Exact among orders in which each group goes to the server with least bytes so far, and free connections
    never idle: up to `MOST_GROUPED` gradients over all groups, up to `MOST_ORDERED` with one gradient a
    group. Beyond, None.

    Parameters
    ----------
    ready, tail, sizes, dtypes, push_bytes, pull_bytes : arrays of shape (num_gradients,)
    enough
        A window, such as a bound, at which to stop.
    faster_than
        None is returned unless the window is shorter than this.
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
