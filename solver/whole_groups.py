"""The best groups and their order if groups are sent uncut: exact, for few gradients."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.cost_curve import CostCurve

MOST_GRADIENTS = 12
# Windows whose lengths differ by a smaller share than this count as equally long.
PRECISION = 1e-6


def best_whole_groups(
    ready: FloatArray,
    tail: FloatArray,
    sizes: IntArray,
    dtypes: IntArray,
    cost: CostCurve,
    *,
    faster_than: float,
    max_group_bytes: int | None = None,
) -> list[list[int]] | None:
    """Return the groups, in sending order, whose window is shortest if no group is cut.

    Exact up to a share `PRECISION` of the window. In a window of given length, each group must end by the
    window's end less its tail. So of all ways to send a set of gradients only the one that ends first counts,
    and a window is checked in O(3^n). Windows are made shorter until none is feasible.

    Parameters
    ----------
    ready, tail : arrays of shape (num_gradients,)
        Seconds; of at most `MOST_GRADIENTS` gradients.
    sizes, dtypes : arrays of shape (num_gradients,)
        Bytes, greater than zero, and the number of each gradient's type. Only one type shares a group.
    faster_than
        A window in seconds that the result must beat.
    max_group_bytes
        Largest size of a group of several gradients.

    Returns
    -------
    list of list of int, or None
        The gradients of each group; None if no window is shorter than `faster_than`.
    """
    from pace.solver.kernels import whole_groups as kernel

    count = len(ready)
    ends, last = np.empty(1 << count), np.zeros(1 << count, dtype=np.int64)
    found: list[list[int]] | None = None
    window = faster_than
    while True:
        kernel.earliest_ends(
            ready,
            tail,
            sizes.astype(np.float64),
            dtypes,
            *cost.knots(),
            float(max_group_bytes or np.inf),
            window * (1 - PRECISION),
            ends,
            last,
        )
        sent = (1 << count) - 1
        if not np.isfinite(ends[sent]):
            return found
        found, window = [], 0.0
        while sent:
            group = int(last[sent])
            members = [number for number in range(count) if group >> number & 1]
            window = max(window, float(ends[sent] + tail[members].max()))
            found.insert(0, members)
            sent ^= group
