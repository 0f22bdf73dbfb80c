"""Longest tail first: Jackson's preemptive schedule, optimal for 1 | r_j, q_j, pmtn | Cmax.

Theorem (Horn 1974; Carlier 1982). Serving, at every moment, a released unfinished job of longest tail
minimizes max(completion + tail). Proof by exchange: if at some moment job j is served while i waits with
q_i > q_j, swap the first such moment with a later one of i. No job then ends after the later of the two ends,
and that end now belongs to the shorter tail. ``pace.solver.certificate`` gives the matching lower bound, so
every answer can be checked.
"""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.instance import Instance, Solution


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
