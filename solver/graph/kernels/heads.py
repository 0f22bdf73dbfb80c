"""Heads of nodes, raised at collectives; see ``pace.solver.graph.heads``."""

import numpy as np

from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace.solver.compiled import compiled


@compiled
def raised_heads(
    dep_starts: IntArray, deps: IntArray, weight: FloatArray, compute: FloatArray, raised: BoolArray
) -> FloatArray:
    """Return the head of each node; nodes come after their deps.

    Parameters
    ----------
    weight
        Least seconds from a node's start to its end.
    compute
        Of it, those on the compute stream.
    raised
        The nodes whose needed ops are added up.
    """
    n = len(weight)
    head = np.zeros(n)
    by_head = np.empty(n, dtype=np.int64)
    count = 0
    needed = np.zeros(n, dtype=np.bool_)
    for node in range(n):
        start = 0.0
        for at in range(dep_starts[node], dep_starts[node + 1]):
            start = max(start, head[deps[at]] + weight[deps[at]])
        if raised[node]:
            needed[:node] = False
            needed[node] = True
            for below in range(node, -1, -1):
                if needed[below]:
                    for at in range(dep_starts[below], dep_starts[below + 1]):
                        needed[deps[at]] = True
            total = 0.0
            for at in range(count - 1, -1, -1):
                if needed[by_head[at]]:
                    total += compute[by_head[at]]
                    start = max(start, head[by_head[at]] + total)
        head[node] = start
        if compute[node] > 0:
            at = count
            while at > 0 and head[by_head[at - 1]] > start:
                by_head[at] = by_head[at - 1]
                at -= 1
            by_head[at] = node
            count += 1
    return head
