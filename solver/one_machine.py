"""The one-machine problem 1 | r_j, q_j, pmtn | Cmax: its optimal schedule, and the proof of the optimum.

The jobs are groups of gradients: ready time r, processing time p (of the all-reduce), tail q. Times are in
seconds, or in slots once `in_slots` has rounded them.

*Longest tail first* is Jackson's preemptive schedule. Theorem (Horn 1974; Carlier 1982). Serving, at every
moment, a released unfinished job of longest tail minimizes max(completion + tail). Proof by exchange: if at
some moment job j is served while i waits with q_i > q_j, swap the first such moment with a later one of i. No
job then ends after the later of the two ends, and that end now belongs to the shorter tail.

The *certificate* is a set of jobs whose three numbers add up to the objective. In every schedule, the
objective of a set S of jobs is at least min r + sum p + min q over S: the time until its first release, all
its processing, and its shortest tail. The greatest such bound equals the optimum (Carlier 1982, proposition
1). It suffices to look at the sets {r >= rho, q >= theta}.

Proof. Let job c attain the greatest completion + tail under longest tail first, and let y be its completion.
Let s be the last moment before y at which the machine idled or served a job with a tail below q_c. From s to
y, only jobs with tails of at least q_c are served. None of them was released before s, or it would have been
served then. All of them are done by y. For this set S, min r = s, sum p = y - s and min q = q_c. So its bound
is y + q_c, the objective of longest tail first.
"""

from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray, IntArray

# Quotients such as 1.1 / 0.1 exceed the exact integer by a rounding error.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Jobs of the one-machine problem.

    Attributes
    ----------
    ready, processing, tail : arrays of shape (num_jobs,)
        Finite and not negative.
    """

    ready: FloatArray
    processing: FloatArray
    tail: FloatArray

    def __len__(self) -> int:
        return len(self.ready)

    def in_slots(self, slot_s: float) -> "Instance":
        """Return the instance in slots of `slot_s` seconds: r and p rounded up, q in units of slots.

        This is equation (3) of the PACE paper. A processing time above zero takes at least one slot.
        """
        processing = np.ceil(self.processing / slot_s - ROUNDING)
        return Instance(
            ready=np.ceil(self.ready / slot_s - ROUNDING),
            processing=np.where(self.processing > 0, np.maximum(processing, 1.0), 0.0),
            tail=self.tail / slot_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A preemptive schedule of an instance.

    Attributes
    ----------
    jobs : array of shape (num_pieces,)
        The job that each piece serves, in order of time.
    starts, ends : arrays of shape (num_pieces,)
        When each piece starts and ends.
    completion : array of shape (num_jobs,)
        When each job ends; its ready time if it has nothing to process.
    objective : float
        max(completion + tail); 0 without jobs.
    """

    jobs: IntArray
    starts: FloatArray
    ends: FloatArray
    completion: FloatArray
    objective: float


def solve(instance: Instance) -> Solution:
    """Return an optimal schedule by longest tail first, in O(n log n), with at most n - 1 preemptions.

    If ready and processing times are whole slots (``Instance.in_slots``), the pieces start and end on whole
    slots. Of equal tails, the running job goes on; then the earlier ready time goes first, then the smaller
    index. So the same instance gives the same pieces on every machine.
    """
    from pace.solver.kernels import jackson as kernel

    n = len(instance)
    jobs = np.empty(2 * n, dtype=np.int64)
    starts, ends = np.empty(2 * n), np.empty(2 * n)
    completion = np.empty(n)
    by_ready = np.argsort(instance.ready, kind="stable")
    # A running job was ready no later than a job just released, so this order also lets it go on.
    by_rank = by_ready[np.argsort(-instance.tail[by_ready], kind="stable")]
    pieces, objective = kernel.serve(
        instance.ready,
        instance.processing,
        instance.tail,
        by_ready,
        by_rank,
        jobs,
        starts,
        ends,
        completion,
    )
    return joined(jobs[:pieces], starts[:pieces], ends[:pieces], completion, objective)


def joined(
    jobs: IntArray, starts: FloatArray, ends: FloatArray, completion: FloatArray, objective: float
) -> Solution:
    """Return a solution in which adjacent pieces of the same job are merged."""
    if len(jobs) > 1:
        first = np.concatenate(([True], (jobs[1:] != jobs[:-1]) | (starts[1:] != ends[:-1])))
        last = np.concatenate((first[1:], [True]))
        jobs, starts, ends = jobs[first], starts[first], ends[last]
    return Solution(jobs=jobs, starts=starts, ends=ends, completion=completion, objective=objective)


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
    """Return the critical set of a longest-tail-first schedule, in O(n): S in the proof above.

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
    """Return the set of jobs with the greatest bound on one link, by longest tail first, in O(n log n).

    The arrays have the shape (num_jobs,) and hold seconds.
    """
    instance = Instance(ready=ready, processing=processing, tail=tail)
    return certify(instance, solve(instance))
