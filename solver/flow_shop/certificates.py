"""Proofs for two links: sets of jobs whose few numbers add up to a bound that no order beats.

Every bound is a relaxation: the uplink alone, with each job's own pull in its tail; the downlink alone,
with each job's own push before its ready time; and both, for the jobs of one set all released together,
where Johnson's order is optimal.
"""

from dataclasses import dataclass

import numpy as np

from pace.solver import jackson
from pace.solver.arrays import FloatArray
from pace.solver.certificate import CriticalSet, certify
from pace.solver.flow_shop.instance import TwoLinks
from pace.solver.flow_shop.orders import johnson_order
from pace.solver.instance import Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class PairBound:
    """A set {r >= min_ready, q >= min_tail} and Johnson's makespan of its pushes and pulls."""

    jobs: tuple[int, ...]
    min_ready: float
    makespan: float
    min_tail: float

    @property
    def bound(self) -> float:
        """The bound on max(pull end + tail) that the set proves."""
        return self.min_ready + self.makespan + self.min_tail


def one_link_bound(ready: FloatArray, processing: FloatArray, tail: FloatArray) -> CriticalSet:
    """Return the strongest set on one link, by Jackson's schedule. O(n log n)."""
    instance = Instance(ready=ready, processing=processing, tail=tail)
    return certify(instance, jackson.solve(instance))


def uplink_bound(instance: TwoLinks) -> CriticalSet:
    """Return C*(r, u, q + d): after its push every job still has its own pull before it."""
    return one_link_bound(instance.ready, instance.push, instance.tail + instance.pull)


def downlink_bound(instance: TwoLinks) -> CriticalSet:
    """Return C*(r + u, d, q): no pull starts before its own push has ended."""
    return one_link_bound(instance.ready + instance.push, instance.pull, instance.tail)


def pair_bound(instance: TwoLinks) -> PairBound:
    """Return the strongest set {r >= rho, q >= tau} with Johnson's makespan on both links. O(n^3).

    Johnson (1954) minimizes the makespan of jobs that are all released at once. Setting all ready times of
    the set to rho and all tails to tau only relaxes the problem.
    """
    from pace.solver.kernels import two_links as kernel

    if not len(instance):
        return PairBound(jobs=(), min_ready=0.0, makespan=0.0, min_tail=0.0)
    order = johnson_order(instance.push, instance.pull)
    _, rho, span, tau = kernel.strongest_pair(
        instance.ready, instance.push, instance.pull, instance.tail, order
    )
    inside = np.flatnonzero((instance.ready >= rho) & (instance.tail >= tau))
    return PairBound(jobs=tuple(inside.tolist()), min_ready=rho, makespan=span, min_tail=tau)
