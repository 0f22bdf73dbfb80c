"""The best groups and their order where nothing is preempted: exact, for few gradients."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.cost import CostCurve

MOST_GRADIENTS = 12
# Windows that differ by less, relative to their length, count as equally long.
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
    """Return groups in the order in which they are sent whole with the shortest window, or None.

    Exact to `PRECISION`: with all groups due by the window's end less their tail, of all ways to send a set
    of gradients only the one that ends first counts. So each window is tried in O(3^n), and made shorter
    until there is no way left.

    Parameters
    ----------
    ready, tail, sizes, dtypes : arrays of shape (num_gradients,)
        Of at most `MOST_GRADIENTS` gradients with bytes.
    faster_than
        None is returned unless the window is shorter than this.
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
