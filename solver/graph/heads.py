"""Heads and tails of a program's nodes: what surely lies before each and behind it, in seconds.

Theorem. Let w be the duration of an op, and of a collective its time alone. Define r from the first node to
the last: r(v) is the longest of r(u) + w(u) over what v reads and, for a collective v, of rho + the durations
of all ops that v needs whose r is rho or more. No plan, whatever its order and buckets, starts v before r(v).

Proof. By induction. In a bucket a collective takes no less time than alone. None of the ops that v needs
whose r is rho or more starts before rho, they run one at a time, and all of them end before v starts.

Tails are the heads of the reversed program. It suffices to add ops up at collectives: between two of them the
compute stream's own bound (``pace.solver.graph.bounds``) does. Complexity: one pass over the program for each
collective. This is the adjustment of heads and tails of Carlier and Pinson (1989), for one machine and
without branching.
"""

import numpy as np

from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace.solver.graph.adjacency import Adjacency


def heads_and_tails(
    deps: Adjacency, users: Adjacency, weight: FloatArray, compute: FloatArray, collectives: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Return the head and the tail of each node.

    Parameters
    ----------
    deps, users
        What each node reads, all of it earlier nodes, and by which nodes it is read.
    weight
        Least seconds from each node's start to its end.
    compute
        Of it, those on the compute stream.
    """
    from pace.solver.graph.kernels import raised_heads

    head = raised_heads(deps.starts, deps.flat, weight, compute, collectives)
    turned = _turned(users)
    tail = raised_heads(
        turned.starts, turned.flat, weight[::-1].copy(), compute[::-1].copy(), collectives[::-1].copy()
    )
    return head, np.ascontiguousarray(tail[::-1])


def _turned(users: Adjacency) -> Adjacency:
    """Return the lists of the last node first, with nodes numbered from the end."""
    lengths = np.diff(users.starts)
    starts: IntArray = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths[::-1], out=starts[1:])
    # Reversing the flat array turns every list around as well, which changes no maximum.
    return Adjacency(starts=starts, flat=np.ascontiguousarray(len(lengths) - 1 - users.flat[::-1]))
