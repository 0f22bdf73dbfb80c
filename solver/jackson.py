"""Longest tail first: Jackson's preemptive schedule, optimal for 1 | r_j, q_j, pmtn | Cmax.

Theorem (Horn 1974; Carlier 1982). Serving, at every moment, a released unfinished job of longest tail
minimizes max(completion + tail). Proof by exchange: if at some moment job j is served while i waits with
q_i > q_j, swapping the first such moment with a later one of i moves no job's end past the later of the
two, and that end then belongs to the shorter tail. ``pace.solver.certificate`` gives the matching lower
bound, so no answer has to be believed.
"""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.instance import Instance, Solution


def solve(instance: Instance) -> Solution:
    """Solve to optimality by longest tail first, in O(n log n) with at most n - 1 preemptions.

    In slots (``Instance.in_slots``) the pieces begin and end on whole slots, because releases and
    processing times do. Equal tails keep the job already running, then take the earlier ready time,
    then the smaller index: the same instance gives the same pieces everywhere.
    """
    from pace.solver.kernels import jackson as kernel

    n = len(instance)
    jobs = np.empty(2 * n, dtype=np.int64)
    starts, ends = np.empty(2 * n), np.empty(2 * n)
    completion = np.empty(n)
    by_ready = np.argsort(instance.ready, kind="stable")
    # A job that is running was ready no later than one just released, so this order also keeps it running.
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
    """Return a solution whose touching pieces of one job are one piece."""
    if len(jobs) > 1:
        first = np.concatenate(([True], (jobs[1:] != jobs[:-1]) | (starts[1:] != ends[:-1])))
        last = np.concatenate((first[1:], [True]))
        jobs, starts, ends = jobs[first], starts[first], ends[last]
    return Solution(jobs=jobs, starts=starts, ends=ends, completion=completion, objective=objective)
