"""Instances of the two-link problem: worked by hand, drawn, and solved by looking at every order."""

from collections.abc import Sequence
from itertools import permutations

import numpy as np
from hypothesis import strategies as st

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.flow_shop.two_links import TwoLinks
from tests.strategies import eighths


def two_links(jobs: Sequence[tuple[float, float, float, float]]) -> TwoLinks:
    """Return the instance of (ready, push, pull, tail) jobs."""
    table = np.array(jobs, dtype=np.float64).reshape(len(jobs), 4)
    return TwoLinks(ready=table[:, 0], push=table[:, 1], pull=table[:, 2], tail=table[:, 3])


def three_layers(
    sizes: tuple[int, int, int], backward_s: float, forward_s: float, *, part: float | None = None
) -> TwoLinks:
    """Return three layers, 0 nearest the input and ready last, whole or in parts; pulls as long as pushes."""
    jobs = []
    for layer in (2, 1, 0):
        ready, tail = (3 - layer) * backward_s, (3 - layer) * forward_s
        count = 1 if part is None else int(sizes[layer] / part)
        jobs += [(ready, sizes[layer] / count, sizes[layer] / count, tail)] * count
    return two_links(jobs)


def drawn_links(
    max_jobs: int, *, min_jobs: int = 0, ratio: st.SearchStrategy[float] | None = None
) -> st.SearchStrategy[TwoLinks]:
    """Draw instances of small multiples of 1/8; with `ratio`, pulls are that multiple of all pushes."""
    job = st.tuples(eighths(3), eighths(2), eighths(2), eighths(3))
    jobs = st.lists(job, min_size=min_jobs, max_size=max_jobs)
    if ratio is None:
        return jobs.map(two_links)
    return st.tuples(jobs, ratio).map(
        lambda drawn: two_links([(r, u, u * drawn[1], q) for r, u, _, q in drawn[0]])
    )


def optimum(instance: TwoLinks) -> float:
    """Return the least objective over every pair of orders, both links free to choose their own."""
    n = len(instance)
    if not n:
        return 0.0
    orders: IntArray = np.array(list(permutations(range(n))), dtype=np.int64)
    best = np.inf
    for order in orders:
        arrived = np.empty(n)
        free = 0.0
        for job in order:
            free = arrived[job] = max(free, instance.ready[job]) + instance.push[job]
        best = min(best, float(_best_downlink(arrived, instance, orders)))
    return best


def _best_downlink(arrived: FloatArray, instance: TwoLinks, orders: IntArray) -> float:
    free, worst = np.zeros(len(orders)), np.zeros(len(orders))
    for place in range(orders.shape[1]):
        job = orders[:, place]
        free = np.maximum(free, arrived[job]) + instance.pull[job]
        worst = np.maximum(worst, free + instance.tail[job])
    return float(worst.min())
