"""Reduce-scatters and all-gathers without a norm: chains of a reduce-scatter, an update and an all-gather.

Theorem. Let gather j need the reduce-scatters P(j) and the update of its own shard, u_j. Give it the head
r_j = max over i in P(j) of (r_i + a_i + u_j), and reduce-scatter i the tail
q_i = max over the gathers j that need it of (u_j + b_j + q_j). Then the one-machine problem of all calls as
independent jobs, 1 | r, q, pmtn | Cmax, bounds every plan of these calls from below, and for u = 0 longest
tail first attains that bound without ever breaking a chain.

Proof. In every plan, j starts no earlier than the new r_j, and at least the new q_i follows the end of i. So
the heads and tails hold in every plan, which gives the bound. Whenever j is released, so is every i in P(j),
because r_i <= r_j, and q_i >= b_j + q_j > q_j if the gather takes any time. So every i in P(j) is completed
before j is served, and the optimal schedule of the independent jobs is a plan. The proof does not depend on
which gradients share calls: the two halves may be grouped differently.

The oracle (``pace.solver.one_machine``) and its certificate therefore hold on the calls of both halves. If
updates take time, the bound still holds, but the plan must be simulated.
"""

import numpy as np

from pace.solver.arrays import FloatArray
from pace.solver.cost_curve import CostCurve
from pace.solver.one_machine import Instance
from pace.solver.two_halves.calls import Half, dependencies


def chained_instance(
    scattered: Half,
    gathered: Half,
    *,
    reduce_scatter: CostCurve,
    all_gather: CostCurve,
    calls_s: FloatArray | None = None,
) -> Instance:
    """Return the calls as independent jobs: first all reduce-scatters, then all gathers.

    ``one_machine.solve`` breaks ties by index, so a reduce-scatter comes before a gather that needs it even
    if neither takes any time.

    Parameters
    ----------
    scattered, gathered
        The calls of both halves.
    reduce_scatter, all_gather
        The costs of both kinds of calls.
    calls_s : array of shape (num_calls,)
        Seconds of each call, gathers last (default: by their costs).
    """
    first = scattered.durations(reduce_scatter) if calls_s is None else calls_s[: len(scattered)]
    second = gathered.durations(all_gather) if calls_s is None else calls_s[len(scattered) :]
    head = np.zeros(len(gathered))
    tail = np.zeros(len(scattered))
    pairs = dependencies(scattered, gathered)
    before, after = pairs[:, 0], pairs[:, 1]
    np.maximum.at(head, after, (scattered.times + first)[before])
    np.maximum.at(tail, before, (second + gathered.times)[after])
    return Instance(
        ready=np.concatenate([scattered.times, head]),
        processing=np.concatenate([first, second]),
        tail=np.concatenate([tail, gathered.times]),
    )
