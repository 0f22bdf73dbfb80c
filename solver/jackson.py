"""Longest tail first: Jackson's preemptive schedule, optimal for 1 | r_j, q_j, pmtn | Cmax.

Theorem (Horn 1974; Carlier 1982). Serving, at every moment, a released unfinished job of longest tail
minimizes max(completion + tail). Proof by exchange: if at some moment job j is served while i waits with
q_i > q_j, swapping the first such moment with a later one of i moves no job's end past the later of the
two, and that end then belongs to the shorter tail. ``pace.solver.certificate`` gives the matching lower
bound, so no answer has to be believed.
"""

import heapq

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


def solve_plainly(instance: Instance) -> Solution:
    """Do the same in plain Python: the twin that tests hold equal to the compiled loop."""
    ready, tail = instance.ready.tolist(), instance.tail.tolist()
    left = instance.processing.tolist()
    upcoming = sorted(range(len(instance)), key=lambda job: ready[job])[::-1]
    completion = list(ready)
    waiting: list[tuple[float, float, int]] = []
    pieces: list[tuple[int, float, float]] = []
    now = 0.0
    while upcoming or waiting:
        if not waiting:
            now = max(now, ready[upcoming[-1]])
        while upcoming and ready[upcoming[-1]] <= now:
            job = upcoming.pop()
            if left[job] > 0:
                heapq.heappush(waiting, (-tail[job], ready[job], job))
        if not waiting:
            continue
        job = waiting[0][2]
        end = now + left[job]
        preempted = next(
            (ready[other] for other in reversed(upcoming) if left[other] > 0 and tail[other] > tail[job]), end
        )
        until = min(end, preempted)
        pieces.append((job, now, until))
        left[job] = end - until
        if left[job] <= 0:
            heapq.heappop(waiting)
            completion[job] = end
        now = until
    objective = max((c + q for c, q in zip(completion, tail, strict=True)), default=0.0)
    jobs = np.array([job for job, _, _ in pieces], dtype=np.int64)
    starts = np.array([start for _, start, _ in pieces])
    ends = np.array([end for _, _, end in pieces])
    return joined(jobs, starts, ends, np.array(completion), objective)


def joined(
    jobs: IntArray, starts: FloatArray, ends: FloatArray, completion: FloatArray, objective: float
) -> Solution:
    """Return a solution whose touching pieces of one job are one piece."""
    if len(jobs) > 1:
        first = np.concatenate(([True], (jobs[1:] != jobs[:-1]) | (starts[1:] != ends[:-1])))
        last = np.concatenate((first[1:], [True]))
        jobs, starts, ends = jobs[first], starts[first], ends[last]
    return Solution(jobs=jobs, starts=starts, ends=ends, completion=completion, objective=objective)
