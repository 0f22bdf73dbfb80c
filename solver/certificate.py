"""Proof that a schedule cannot be beaten: a set of jobs whose three numbers add up to its objective.

In every schedule, the objective of a set S of jobs is at least min r + sum p + min q: the time until its
first release, all its processing, and its shortest tail. The greatest such bound equals the optimum (Carlier
1982, proposition 1). It suffices to look at the sets {r >= rho, q >= theta}.

Proof. Let job c attain the greatest completion + tail under longest tail first, and let y be its completion.
Let s be the last moment before y at which the machine idled or served a job with a tail below q_c. From s to
y, only jobs with tails of at least q_c are served. None of them was released before s, or it would have been
served then. All of them are done by y. For this set S, min r = s, sum p = y - s and min q = q_c. So its bound
is y + q_c, the objective of longest tail first.
"""

from dataclasses import dataclass

import numpy as np

from pace.solver import jackson
from pace.solver.arrays import FloatArray
from pace.solver.instance import Instance, Solution


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalSet:
    """A set of jobs and the bound that it proves: min_ready + total_processing + min_tail, in seconds."""

    jobs: tuple[int, ...]
    min_ready: float
    total_processing: float
    min_tail: float

    @property
    def bound(self) -> float:
        """The lower bound on max(completion + tail) that the set proves."""
        return self.min_ready + self.total_processing + self.min_tail


def certify(instance: Instance, solution: Solution) -> CriticalSet:
    """Return the critical set of a longest-tail-first schedule, in O(n).

    Let job c attain the objective and s be the last moment before its end at which the machine idled or
    served a shorter tail. From s on only tails >= q_c are served, none of them was released before s (it
    would have been served instead), and all are done when c is: their bound is s + (end_c - s) + q_c.

    Returns
    -------
    CriticalSet
        An empty set with bound 0 where there are no jobs. Jobs without processing prove their own
        ready + tail.
    """
    if len(instance) == 0:
        return CriticalSet(jobs=(), min_ready=0.0, total_processing=0.0, min_tail=0.0)
    critical = int(np.argmax(solution.completion + instance.tail))
    chosen = {critical}
    piece = (
        int(np.searchsorted(solution.ends, solution.completion[critical]))
        if instance.processing[critical]
        else -1
    )
    moment = solution.ends[piece] if piece >= 0 else 0.0
    while piece >= 0 and solution.ends[piece] >= moment:
        if instance.tail[solution.jobs[piece]] < instance.tail[critical]:
            break
        chosen.add(int(solution.jobs[piece]))
        moment = solution.starts[piece]
        piece -= 1
    jobs = sorted(chosen)
    return CriticalSet(
        jobs=tuple(jobs),
        min_ready=float(instance.ready[jobs].min()),
        total_processing=float(np.sum(instance.processing[jobs])),
        min_tail=float(instance.tail[jobs].min()),
    )


def one_link_bound(ready: FloatArray, processing: FloatArray, tail: FloatArray) -> CriticalSet:
    """Return the set of jobs with the greatest bound on one link, by Jackson's schedule, in O(n log n).

    The arrays have the shape (num_jobs,) and hold seconds.
    """
    instance = Instance(ready=ready, processing=processing, tail=tail)
    return certify(instance, jackson.solve(instance))
