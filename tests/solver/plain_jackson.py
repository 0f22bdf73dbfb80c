"""Jackson's schedule in plain Python: the twin of the compiled loop."""

import heapq

import numpy as np

from pace.solver.one_machine import Instance, Solution, joined


def solve_plainly(instance: Instance) -> Solution:
    """Serve a released job of longest tail at every moment."""
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
