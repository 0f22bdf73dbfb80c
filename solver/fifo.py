"""The best groups for frameworks that send first in, first out and then stop at a barrier.

Only the end of the last all-reduce matters there, and groups are sent in order of ready time. A dynamic
program over prefixes finds the best contiguous groups. It is exact for every monotone g and takes O(n^2).
"""

import numpy as np

from pace.solver.cost import CostCurve
from pace.solver.partition import Chain


def best_fifo(
    chain: Chain, cost: CostCurve, *, max_group_bytes: int | None = None
) -> tuple[list[int], float]:
    """Cut a chain into runs so that the last all-reduce ends as early as possible. Exact, O(n^2).

    A run is ready when its last element is, and waits for the run before it. Only a run of one element may be
    larger than `max_group_bytes`.

    Returns
    -------
    list of int, float
        The index of each run's first element, and the end of the last all-reduce in seconds.
    """
    from pace.solver.kernels import fifo as kernel

    n = len(chain)
    ends = np.concatenate(([0.0], np.cumsum(chain.sizes, dtype=np.float64)))
    first = np.zeros(n, dtype=np.int64)
    if max_group_bytes is not None:
        fitting = np.searchsorted(ends, ends[1:] - max_group_bytes)
        first = np.minimum(fitting, np.arange(n)).astype(np.int64)
    start_of = np.empty(n, dtype=np.int64)
    end = kernel.earliest_ends(chain.ready, ends, first, *cost.knots(), start_of)
    cuts = [int(start_of[n - 1])] if n else []
    while cuts and cuts[-1] > 0:
        cuts.append(int(start_of[cuts[-1] - 1]))
    return cuts[::-1], end


def fewer_runs(
    chain: Chain, cost: CostCurve, cuts: list[int], *, max_group_bytes: int | None = None
) -> list[int]:
    """Merge neighboring runs as long as the last all-reduce ends no later; return each run's first element.

    Greedy, from the first run on: merge as many runs as the latest possible start of the next one permits.
    Where compute hides the all-reduces anyway, a few groups do as well as many.
    """
    ends = np.concatenate(([0.0], np.cumsum(chain.sizes, dtype=np.float64)))
    edges = np.array([*cuts, len(chain)])
    lasting = cost(np.diff(ends[edges]))
    ready = chain.ready[edges[1:] - 1]
    now = 0.0
    for run_ready, duration in zip(ready, lasting, strict=True):
        now = max(now, run_ready) + duration
    # The latest end of each run with which the runs after it still end as early as they do now.
    latest = now - np.concatenate((np.cumsum(lasting[:0:-1])[::-1], [0.0]))
    kept: list[int] = []
    place, now = 0, 0.0
    while place < len(cuts):
        together = ends[edges[place + 1 :]] - ends[edges[place]]
        in_time = np.maximum(now, ready[place:]) + cost(together) <= latest[place:]
        if max_group_bytes is not None:
            in_time &= together <= max_group_bytes
        in_time[0] = True
        more = int(np.flatnonzero(in_time)[-1])
        kept.append(cuts[place])
        now = max(now, ready[place + more]) + float(cost(together[more]))
        place += more + 1
    return kept
