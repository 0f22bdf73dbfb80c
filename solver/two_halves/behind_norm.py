"""Reduce-scatters and all-gathers with a global norm between them: an exact plan.

With clipping by the global norm, or a loss scale that checks all gradients, no shard may be updated before
the last reduce-scatter has ended and the ranks have exchanged one number.

Theorem. Let E be the earliest end of the last reduce-scatter over all partitions and orders, G the least
value over all partitions of max over k of (b_1 + ... + b_k + q_k), gathers sorted by falling tail, and d the
time for the norm and what follows it. Then the shortest window is max(C0, E + d + G).

Proof. Every gather starts after the norm, and the norm needs every reduce-scatter. So the window splits at B
= (end of the last reduce-scatter) + d, what is done before B matters afterwards only through B, and the two
parts can be minimized separately. Before B only the end of the last call counts. No order of given calls ends
earlier than first in, first out, which never idles while a call is ready: this is the dynamic program for
frameworks with a barrier (``best_fifo`` in ``pace.solver.partition``). At B all gathers are released at once,
so preemption gains nothing, and longest tail first minimizes max(end + tail) (exchange two neighbors). The
critical sets are the gathers up to the k-th. They are suffixes of the chain by rising tail, so this is the
program of ``best_layered`` with equal ready times. For an affine cost, runs of the chain are as good as
groups with gaps and as cuts through a gradient: label every call with the last gradient on the chain of which
it carries any byte. Every byte after the k-th of these labels is in a later call. So the runs that end at the
same gradients have no more bytes in any suffix and no more calls. (For other costs, and with several types,
the programs are exact among runs of one type.)
"""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.cost_curve import CostCurve
from pace.solver.partition import EXACT, Chain, best_fifo, best_layered, fewest_runs

# With more gradients, the quadratic program for a cost with several slopes merges neighbors first.
CONTRACT_BEYOND = 2000
CONTRACTED = 1000
COARSE = 1e-5


def chain_of_half(
    sizes: IntArray, *, ready: FloatArray | None = None, tail: FloatArray | None = None
) -> Chain:
    """Return gradients of one half as a chain; reduce-scatters have no tail, and all-gathers are ready at 0.

    Parameters
    ----------
    sizes : array of shape (n,)
        Bytes, greater than zero.
    ready, tail : arrays of shape (n,)
        Seconds, not decreasing. In order of tails, the gradient that is needed first comes last.
    """
    zeros = np.zeros(len(sizes))
    return Chain(ready=zeros if ready is None else ready, tail=zeros if tail is None else tail, sizes=sizes)


def best_reduce_scatters(
    chain: Chain, cost: CostCurve, *, max_group_bytes: int | None = None
) -> tuple[list[int], float]:
    """Return the first elements of the runs whose last reduce-scatter ends earliest, and that end in seconds.

    Only a run of one element may be larger than `max_group_bytes`.
    """
    if not len(chain):
        return [], 0.0
    if cost.line is None:
        return best_fifo(chain, cost, max_group_bytes=max_group_bytes)
    return best_layered(chain, cost, enough=0.0, max_group_bytes=max_group_bytes)


def best_all_gathers(
    chain: Chain, cost: CostCurve, *, enough: float = 0.0, max_group_bytes: int | None = None
) -> tuple[list[int], float]:
    """Return the first elements of the runs that minimize max(end + tail), and that minimum in seconds.

    Exact for an affine cost, and for other monotone costs with up to `CONTRACT_BEYOND` gradients. It stops at
    `enough` seconds. Only a run of one element may be larger than `max_group_bytes`.
    """
    if not len(chain):
        return [], 0.0
    if cost.line is None and len(chain) > CONTRACT_BEYOND:
        coarse, starts = chain.contracted(CONTRACTED)
        cuts, value = best_layered(
            coarse, cost, enough=enough, max_group_bytes=max_group_bytes, tolerance=COARSE
        )
        return [int(starts[cut]) for cut in cuts], value
    return best_layered(chain, cost, enough=enough, max_group_bytes=max_group_bytes, tolerance=EXACT)


def fewest_calls_under(
    chain: Chain, cost: CostCurve, limit: float, *, most: int, max_group_bytes: int | None = None
) -> list[int] | None:
    """Return the first elements of the fewest runs that keep max(end + tail) at a limit in seconds.

    None if `most` runs are not enough. With many gradients and a cost that is not affine, neighbors are
    merged first.
    """
    if not len(chain):
        return []
    if cost.line is None and len(chain) > CONTRACT_BEYOND:
        coarse, starts = chain.contracted(CONTRACTED)
        cuts = fewest_runs(coarse, cost, limit, most=most, max_group_bytes=max_group_bytes)
        return None if cuts is None else [int(starts[cut]) for cut in cuts]
    return fewest_runs(chain, cost, limit, most=most, max_group_bytes=max_group_bytes)
