"""Two halves with a global norm between them: an exact plan.

With clipping by the global norm, or a loss scale that looks at all gradients, no shard may be updated before
the last reduce-scatter has ended and its ranks have exchanged one number.

Theorem. Let E be the earliest end of the last reduce-scatter over all partitions and orders, G the least
value over all partitions of max over k of (b_1 + ... + b_k + q_k), gathers sorted by falling tail, and d the
time for the norm and what follows it. Then the shortest window is max(C0, E + d + G).

Proof. Every gather starts after the norm, which needs every reduce-scatter: a window falls apart at
B = (end of the last reduce-scatter) + d, and what is done before B reaches what follows only through B. So
both parts are minimized apart. Before B only the end of the last call counts, and no order of given calls
ends earlier than first in, first out, which never idles with something to do: this is the dynamic program
for frameworks with a barrier. After B all gathers are released at once, so nothing is worth interrupting,
and longest tail first minimizes max(end + tail) (exchange two neighbors). The critical sets are then the
gathers up to the k-th: suffixes of the chain by rising tail, so this is the program of
``pace.solver.partition`` with all ready times equal. For an affine cost no grouping with gaps and no cut
through a gradient does better than runs of each chain: name every call by the last gradient on the chain of
which it carries anything. Every byte after the k-th of these names is in a later call, so the runs with the
same last gradients have no more bytes in any suffix and no more calls. (For other costs, and with several
dtypes, the programs are exact among runs of one dtype.)
"""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.cost import CostCurve
from pace.solver.fifo import best_fifo
from pace.solver.partition import EXACT, Chain, best_layered

# Beyond so many gradients the program for a cost with several slopes, quadratic in them, works on runs.
CONTRACT_BEYOND = 2000
CONTRACTED = 1000
COARSE = 1e-5


def best_reduce_scatters(
    ready: FloatArray,
    sizes: IntArray,
    cost: CostCurve,
    *,
    enough: float = 0.0,
    max_group_bytes: int | None = None,
) -> tuple[list[int], float]:
    """Return the first elements of the runs whose last reduce-scatter ends earliest, and that end.

    Parameters
    ----------
    ready, sizes : arrays of shape (n,)
        Seconds, not falling, and bytes greater than zero.
    enough
        An end that need not be beaten. For an affine cost, the fewest runs that reach it or the optimum.
    """
    chain = Chain(ready=ready, tail=np.zeros(len(ready)), sizes=sizes)
    if not len(chain):
        return [], 0.0
    if cost.line is None:
        return best_fifo(chain, cost, max_group_bytes=max_group_bytes)
    return best_layered(chain, cost, enough=enough, max_group_bytes=max_group_bytes)


def best_all_gathers(
    tail: FloatArray,
    sizes: IntArray,
    cost: CostCurve,
    *,
    enough: float = 0.0,
    max_group_bytes: int | None = None,
) -> tuple[list[int], float]:
    """Return the first elements of the runs that minimize max(end + tail), all released at time 0.

    Parameters
    ----------
    tail, sizes : arrays of shape (n,)
        Seconds, not falling: the gradient that is needed first is last. Bytes greater than zero.
    enough
        A value that need not be beaten.

    Notes
    -----
    Exact for a monotone cost up to `CONTRACT_BEYOND` gradients, and for an affine one beyond.
    """
    chain = Chain(ready=np.zeros(len(tail)), tail=tail, sizes=sizes)
    if not len(chain):
        return [], 0.0
    if cost.line is None and len(chain) > CONTRACT_BEYOND:
        coarse, starts = chain.contracted(CONTRACTED)
        cuts, value = best_layered(
            coarse, cost, enough=enough, max_group_bytes=max_group_bytes, tolerance=COARSE
        )
        return [int(starts[cut]) for cut in cuts], value
    return best_layered(chain, cost, enough=enough, max_group_bytes=max_group_bytes, tolerance=EXACT)
