"""Which neighbors on a chain to fuse: the PACE paper's MaxMinSize, and the exact optima.

``best_layered`` is for longest tail first on layered chains, ``best_fifo`` for first in, first out.

A chain is a list of gradients in order of ready time. A partition cuts it into runs; each run is one group.
Types and names are unknown here: ``pace.planning.fusion.search`` calls these functions once for each class of
gradients that may share a buffer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.cost_curve import CostCurve, Line
from pace.solver.one_machine import Instance

EXACT = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Gradients in order of ready time.

    Attributes
    ----------
    ready, tail : arrays of shape (n,)
        Seconds; `ready` does not decrease.
    sizes : integer array of shape (n,)
        Bytes, greater than zero.
    """

    ready: FloatArray
    tail: FloatArray
    sizes: IntArray

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def is_layered(self) -> bool:
        """Whether tails do not decrease along the chain: a gradient that is ready later is needed earlier."""
        return bool(np.all(np.diff(self.tail) >= 0))

    def contracted(self, num_elements: int) -> tuple["Chain", IntArray]:
        """Merge neighbors until `num_elements` are left; return the chain and the first gradient of each.

        The merged elements have about equal sizes, so little is lost by never cutting inside one.
        """
        ends = np.cumsum(self.sizes)
        shares = np.arange(1, num_elements) * (ends[-1] / num_elements)
        starts = np.unique(np.concatenate(([0], np.searchsorted(ends, shares) + 1)))
        starts = starts[starts < len(self)].astype(np.int64)
        return Chain(
            ready=np.maximum.reduceat(self.ready, starts),
            tail=np.maximum.reduceat(self.tail, starts),
            sizes=np.add.reduceat(self.sizes, starts),
        ), starts

    def fuse(self, cuts: Sequence[int], cost: CostCurve) -> Instance:
        """Return the instance whose jobs are the runs that begin at each of `cuts`; the first cut is 0."""
        return Instance(
            ready=np.maximum.reduceat(self.ready, cuts),
            processing=cost(np.add.reduceat(self.sizes, cuts)),
            tail=np.maximum.reduceat(self.tail, cuts),
        )


def max_min_partitions(sizes: IntArray) -> Iterator[list[int]]:
    """Yield, for R = 1, 2, ..., n, the first elements of the R runs whose smallest size is greatest.

    This is the PACE paper's Algorithm 1 (MaxMinSize), in O(n) for each R instead of O(n^3). Of the best
    partitions it is the one of the paper's recursion f_R(i) = max over j of min(S(i..j), f_{R-1}(j + 1)):
    the runs from each cut on are best for themselves, and of equal j the first is taken. `sizes` has the
    shape (n,) and holds bytes.
    """
    from pace.solver.kernels import partition as kernel

    n = len(sizes)
    ends = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    previous = ends[n] - ends
    current = np.empty_like(previous)
    # The system provides memory for a row only when the row is filled, so few R take little.
    following = np.empty((n, n), dtype=np.int32)
    for groups in range(1, n + 1):
        if groups > 1:
            kernel.max_min_step(ends, previous, current, following[groups - 1])
            previous, current = current, previous
        cuts = np.empty(groups, dtype=np.int64)
        kernel.follow_runs(following, cuts)
        yield cuts.tolist()


def best_layered(
    chain: Chain,
    cost: CostCurve,
    *,
    enough: float,
    max_group_bytes: int | None = None,
    tolerance: float = EXACT,
) -> tuple[list[int], float]:
    """Cut a layered chain into runs that minimize max(completion + tail). Exact.

    On a layered chain (``Chain.is_layered``) some contiguous partition is optimal, and the critical sets are
    suffixes. So the objective of a partition is the maximum over its runs a of r_last(a) + q_last(a) + the
    all-reduces of a and all later runs.

    Parameters
    ----------
    chain
        A layered chain.
    cost
        Any monotone g. The objective is found by bisection. Each probe takes O(n) for an affine g, and O(n^2)
        for any other.
    enough
        Stop at this objective in seconds, for example the compute bound.
    max_group_bytes
        Largest size of a run of more than one element.
    tolerance
        Relative width at which the bisection ends if g is not affine.

    Returns
    -------
    list of int, float
        The index of each run's first element, and the objective in seconds. Of the partitions with this
        objective, it is one with the fewest runs (for an affine g) or the least total duration.
    """
    from pace.solver.kernels import partition as kernel

    n = len(chain)
    ends = np.concatenate(([0.0], np.cumsum(chain.sizes, dtype=np.float64)))
    release_plus_tail = chain.ready + chain.tail
    last = _last_elements(chain.sizes, max_group_bytes)
    until = np.empty(n, dtype=np.int64)

    def affine(line: Line) -> float:
        def probe(limit: float) -> float:
            return kernel.fewest_groups_under(
                limit, release_plus_tail, ends, last, line.latency_s, line.seconds_per_byte, until
            )

        following = line.latency_s + line.seconds_per_byte * (ends[-1] - ends[:-1])
        return _bisect(probe, float(np.max(release_plus_tail + following)), enough, EXACT)

    def probe(limit: float) -> float:
        return kernel.least_total_under(limit, release_plus_tail, ends, last, *cost.knots(), until)

    least = max(affine(line) for line in cost.minorants(float(ends[-1])))
    if cost.line is None:
        _bisect(probe, least, enough, tolerance)
    cuts = [0]
    while (following := int(until[cuts[-1]]) + 1) < n:
        cuts.append(following)
    return cuts, _layered_objective(chain, cuts, cost)


def fewest_runs(
    chain: Chain, cost: CostCurve, limit: float, *, most: int, max_group_bytes: int | None = None
) -> list[int] | None:
    """Cut a layered chain into as few runs as keep max(completion + tail) at a limit in seconds.

    O(n) for an affine cost, else O(n^2) for each run.

    Returns
    -------
    list of int or None
        The index of each run's first element; None if it takes more than `most` runs.
    """
    from pace.solver.kernels import partition as kernel

    n = len(chain)
    ends = np.concatenate(([0.0], np.cumsum(chain.sizes, dtype=np.float64)))
    last = _last_elements(chain.sizes, max_group_bytes)
    release_plus_tail = chain.ready + chain.tail
    if (line := cost.line) is not None:
        until = np.empty(n, dtype=np.int64)
        reached = kernel.fewest_groups_under(
            limit, release_plus_tail, ends, last, line.latency_s, line.seconds_per_byte, until
        )
        rows = [until] * most if reached <= limit else []
    else:
        longest = np.empty((most, n), dtype=np.int32)
        count = kernel.fewest_runs_under(limit, release_plus_tail, ends, last, *cost.knots(), longest)
        rows = list(longest[:count][::-1])
    cuts = [0]
    for row in rows:
        following = int(row[cuts[-1]]) + 1
        if following == n:
            return cuts
        cuts.append(following)
    return None


def _bisect(probe: Callable[[float], float], low: float, enough: float, tolerance: float) -> float:
    """Call `probe` by bisection so that its last call was at the optimum; return the optimum.

    `low` is a lower bound on it. What `probe` adds in another order may miss a limit without slack.
    """
    high = probe(np.inf)
    step = tolerance * high
    while high > enough and high - low > tolerance * high:
        # The optimum is usually close to the bound, so the search starts there and widens.
        middle = max(min(low + step, (low + high) / 2), enough)
        step *= 8
        reached = probe(middle)
        if reached <= middle:
            high = reached
        else:
            low = middle
    return probe(max(high, enough) * (1 + EXACT))


def _last_elements(sizes: IntArray, max_group_bytes: int | None) -> IntArray:
    """Return, for each element, the last element that fits into a run that starts with it."""
    n = len(sizes)
    if max_group_bytes is None:
        return np.full(n, n - 1, dtype=np.int64)
    ends = np.concatenate(([0], np.cumsum(sizes)))
    fitting = np.searchsorted(ends, ends[:-1] + max_group_bytes, side="right") - 2
    return np.maximum(fitting, np.arange(n)).astype(np.int64)


def _layered_objective(chain: Chain, cuts: Sequence[int], cost: CostCurve) -> float:
    fused = chain.fuse(cuts, cost)
    following = np.cumsum(fused.processing[::-1])[::-1]
    return float(np.max(fused.ready + fused.tail + following))


def best_fifo(
    chain: Chain, cost: CostCurve, *, max_group_bytes: int | None = None
) -> tuple[list[int], float]:
    """Cut a chain into runs so that the last all-reduce ends as early as possible. Exact, O(n^2).

    This is for frameworks that send in order of ready time and then stop at a barrier, where only this end
    matters. A run is ready when its last element is, and waits for the run before it. A dynamic program over
    prefixes finds the best contiguous groups for every monotone g. Only a run of one element may be larger
    than `max_group_bytes`.

    Returns
    -------
    list of int, float
        The index of each run's first element, and the end of the last all-reduce in seconds.
    """
    from pace.solver.kernels import partition as kernel

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


def runs(cuts: Sequence[int], n: int) -> list[range]:
    """Return the index ranges of the runs that begin at `cuts`."""
    return [range(start, stop) for start, stop in pairwise([*cuts, n])]
