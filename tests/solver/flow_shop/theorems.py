"""The fluid limit of push and pull, and what partitions of a finite size cost above it.

Theorem. Let d_j = kappa u_j for all jobs. With parts of vanishing size and free preemption, longest tail
first on both links attains T* = max(C*(r, u, q), C*(r, d, q)), and no order does better. For kappa <= 1 the
downlink follows the uplink byte by byte; for kappa > 1 the uplink, under the same priorities, is always at
least as far in every priority class as the downlink's own schedule needs it to be. It generalizes
ByteScheduler's Theorem 1 (Peng et al., SOSP 2019) to every DAG whose ready times do not depend on
communication.
"""

from itertools import product

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.flow_shop.two_links import (
    TwoLinks,
    TwoLinkSolution,
    johnson_order,
    serve_by_rank,
    serve_in_order,
)
from pace.solver.one_machine import CriticalSet, one_link_bound


def fluid_optimum(instance: TwoLinks) -> float:
    """Return max(C*(r, u, q), C*(r, d, q)): exact for proportional links, else a lower bound."""
    links = (instance.push, instance.pull)
    return max(one_link_bound(instance.ready, work, instance.tail).bound for work in links)


def is_proportional(instance: TwoLinks) -> bool:
    """Return whether every job's pull is one multiple of its push: then longest tail first is optimal."""
    cross = np.outer(instance.push, instance.pull)
    return bool(np.allclose(cross, cross.T, rtol=1e-9, atol=0.0))


def partitioned_bound(
    fluid_s: float,
    sizes_bytes: FloatArray | IntArray,
    partition_bytes: float,
    *,
    lost_s: float,
    bytes_per_s: float,
    credit_bytes: float = 0.0,
    overshoots: bool = False,
) -> float:
    """Bound what parts of a finite size take: T <= C* + sum ceil(s / delta) theta + theta + 2 delta / B.

    ByteScheduler prints floor for ceil, which three tensors of half a partition each disprove. A worker sends
    non-preemptively by priority, so its uplink ends within C* and the one part of lower priority that had
    started; a downlink that keeps the order of arrival ends within one part of the uplink.

    Parameters
    ----------
    lost_s
        Theta: link time lost per part.
    credit_bytes
        Bytes that may be under way: of the two parts in the bound, one becomes the larger of part and credit.
    overshoots
        Whether a part is admitted while any credit is left: then it becomes credit and part together.
    """
    parts = np.ceil(np.asarray(sizes_bytes) / partition_bytes).sum()
    under_way = credit_bytes + partition_bytes if overshoots else max(partition_bytes, credit_bytes)
    ahead = under_way + partition_bytes
    return float(fluid_s + parts * lost_s + lost_s + ahead / bytes_per_s)


def strongest_bound(instance: TwoLinks) -> float:
    """Return the greatest of the bounds by uplink, downlink and pair."""
    return max(uplink_bound(instance).bound, downlink_bound(instance).bound, pair_bound(instance))


def uplink_bound(instance: TwoLinks) -> CriticalSet:
    """Return C*(r, u, q + d): after its push every job still has its own pull before it."""
    return one_link_bound(instance.ready, instance.push, instance.tail + instance.pull)


def downlink_bound(instance: TwoLinks) -> CriticalSet:
    """Return C*(r + u, d, q): no pull starts before its own push has ended."""
    return one_link_bound(instance.ready + instance.push, instance.pull, instance.tail)


def pair_bound(instance: TwoLinks) -> float:
    """Return the greatest rho + Johnson's makespan + tau over sets {r >= rho, q >= tau}.

    Johnson (1954) minimizes the makespan of jobs that are all released at once. Setting all ready times of
    the set to rho and all tails to tau only relaxes the problem.
    """
    best = 0.0
    for rho, tau in product(set(instance.ready.tolist()), set(instance.tail.tolist())):
        inside = np.flatnonzero((instance.ready >= rho) & (instance.tail >= tau))
        if len(inside):
            push, pull, nothing = instance.push[inside], instance.pull[inside], np.zeros(len(inside))
            jobs = TwoLinks(ready=nothing, push=push, pull=pull, tail=nothing)
            best = max(best, rho + serve_in_order(jobs, johnson_order(push, pull)).objective + tau)
    return best


def first_in_first_out(instance: TwoLinks) -> TwoLinkSolution:
    """Serve both links in the order of ready times, ties by index."""
    return serve_by_rank(instance, np.argsort(instance.ready, kind="stable"))
