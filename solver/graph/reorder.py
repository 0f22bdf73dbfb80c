"""A plan from places: every node runs as soon as it can after all others with an earlier place."""

import heapq
from collections.abc import Sequence

import numpy as np

from pace.solver.arrays import FloatArray
from pace.solver.graph.fused_program import fuse
from pace.solver.graph.program import Bucket, Program, ProgramPlan


def reordered(program: Program, buckets: Sequence[Bucket], place: FloatArray) -> ProgramPlan:
    """Return the plan whose nodes run in order of their places, as far as what they read allows.

    Parameters
    ----------
    buckets
        None of their members may need another's output.
    place : array of shape (num_nodes,)
        A bucket has the last place of its members, and so have its waits.
    """
    fused = fuse(program, buckets)
    size = len(fused.kind)
    due = np.full(size, -np.inf)
    np.maximum.at(due, fused.place, place)
    missing = np.diff(fused.deps.starts).tolist()
    key = due.tolist()
    ready = [(key[node], node) for node in range(size) if not missing[node]]
    heapq.heapify(ready)
    order = []
    starts, nexts = fused.nexts.starts.tolist(), fused.nexts.flat.tolist()
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for below in nexts[starts[node] : starts[node + 1]]:
            missing[below] -= 1
            if not missing[below]:
                heapq.heappush(ready, (key[below], below))
    assert len(order) == size, "the members of a bucket need one another"
    return ProgramPlan(order=fused.spread(np.array(order, dtype=np.int64)), buckets=tuple(buckets))
