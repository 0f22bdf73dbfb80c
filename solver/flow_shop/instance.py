"""The two-link problem F2 | r_j, q_j | max(D_j + q_j): jobs are pushed over one link and pulled over another.

A job is a tensor or a part of one. It has a ready time r, a push time u on the uplink, a pull time d on the
downlink and a tail q. Its pull starts when its push has ended, at the earliest. Times are in seconds.
"""

from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoLinks:
    """Jobs of the two-link problem.

    Attributes
    ----------
    ready, push, pull, tail : arrays of shape (num_jobs,)
        Finite and not negative.
    """

    ready: FloatArray
    push: FloatArray
    pull: FloatArray
    tail: FloatArray

    def __len__(self) -> int:
        return len(self.ready)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoLinkSolution:
    """A schedule without preemption, in which each link carries one job at a time.

    Attributes
    ----------
    push_order : integer array of shape (num_jobs,)
        The jobs in the order in which the link of pushes serves them.
    push_starts, push_ends, pull_starts, pull_ends : arrays of shape (num_jobs,)
        When each job's push and pull start and end, in seconds.
    objective : float
        max(pull end + tail); 0 without jobs.
    """

    push_order: IntArray
    push_starts: FloatArray
    push_ends: FloatArray
    pull_starts: FloatArray
    pull_ends: FloatArray
    objective: float


def timed(
    instance: TwoLinks, push_starts: FloatArray, pull_starts: FloatArray, *, push_order: IntArray
) -> TwoLinkSolution:
    """Return the solution with these starts, in seconds by job."""
    pull_ends = pull_starts + instance.pull
    return TwoLinkSolution(
        push_order=push_order,
        push_starts=push_starts,
        push_ends=push_starts + instance.push,
        pull_starts=pull_starts,
        pull_ends=pull_ends,
        objective=float(np.max(pull_ends + instance.tail, initial=0.0)),
    )
