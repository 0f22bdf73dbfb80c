"""Two halves without a norm: chains of a reduce-scatter, an update and an all-gather on one machine.

Theorem. Let gather j need the reduce-scatters P(j) and the update of its own shard, u_j. Give it the head
r_j = max over i in P(j) of (r_i + a_i + u_j), and reduce-scatter i the tail
q_i = max over the gathers j that need it of (u_j + b_j + q_j). Then the one-machine problem of all calls as
independent jobs, 1 | r, q, pmtn | Cmax, bounds every plan of these calls from below, and for u = 0 longest
tail first attains that bound without ever breaking a chain.

Proof. In every plan j starts no earlier than the new r_j, and after i ends at least the new q_i follows, so
heads and tails only state what is so in any case: the bound. Whenever j is released, so is every i in P(j),
because r_i <= r_j; and q_i >= b_j + q_j > q_j where the gather takes any time. So as long as one of them has
anything left it is served before j: the optimal schedule of the independent jobs is a plan. It does not
matter which gradients share calls: the two halves may be put together differently.

The oracle (``pace.solver.jackson``) and its certificate therefore hold on the calls of both halves. If
updates take time, the bound still holds, but the plan must be simulated.
"""

import numpy as np

from pace.solver.arrays import FloatArray
from pace.solver.cost import CostCurve
from pace.solver.instance import Instance
from pace.solver.two_halves.calls import Half, dependencies


def chained_instance(
    scattered: Half,
    gathered: Half,
    *,
    reduce_scatter: CostCurve,
    all_gather: CostCurve,
    update_s: FloatArray | None = None,
) -> Instance:
    """Return the calls as independent jobs: first all reduce-scatters, then all gathers.

    Parameters
    ----------
    update_s : array of shape (num_gathers,)
        How long the update of each gather's shard takes; nothing if left out.

    Notes
    -----
    Ties are broken by index (``jackson.solve``), so a reduce-scatter goes before a gather that needs it even
    where neither takes any time.
    """
    first = scattered.durations(reduce_scatter)
    second = gathered.durations(all_gather)
    update = np.zeros(len(gathered)) if update_s is None else update_s
    head = np.zeros(len(gathered))
    tail = np.zeros(len(scattered))
    pairs = dependencies(scattered, gathered)
    before, after = pairs[:, 0], pairs[:, 1]
    np.maximum.at(head, after, (scattered.times + first)[before] + update[after])
    np.maximum.at(tail, before, (update + second + gathered.times)[after])
    return Instance(
        ready=np.concatenate([scattered.times, head]),
        processing=np.concatenate([first, second]),
        tail=np.concatenate([tail, gathered.times]),
    )
