"""The PACE paper's oracle: a linear program over slots whose vertices are integer.

x[i, t] = 1 when slot t serves job i. Each job gets its p slots (3), a slot serves at most one job (6),
none before r (7): a transportation polytope, whose matrix is totally unimodular (Theorem 2), so that the
LP's optimal vertices are schedules.

The paper prices x[i, t] at (T N)^(t + q_i), which doubles cannot hold. Here the price is t * w_i with w_i
the rank of q_i among the distinct tails, from 1. Take slots t1 < t2 and jobs i, j released by t1 with
q_i > q_j: serving i first costs (t2 - t1)(w_i - w_j) > 0 less, and moving any slot's work to an earlier free
slot costs less too. So every optimum serves the longest tail in every slot, which is the lexicographically
least and hence minimizes the maximum of t + q. Prices are integers, so no tolerance can confuse two tails.
"""

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.instance import Instance, Solution
from pace.solver.jackson import joined

MAX_VARIABLES = 4_000_000


class TooLarge(ValueError):
    """The program would have more variables than its limit."""

    def __init__(self, variables: int, limit: int) -> None:
        self.variables = variables
        self.limit = limit
        super().__init__(f"{variables} variables, of {limit} at most")


class NoOptimum(RuntimeError):
    """HiGHS ended without an optimum; the message is its own."""


def num_slots(instance: Instance) -> int:
    """Return the slot by which any schedule without needless idling has served every job."""
    now = 0.0
    for job in np.argsort(instance.ready, kind="stable"):
        if instance.processing[job] > 0:
            now = max(now, instance.ready[job]) + instance.processing[job]
    return int(now)


def num_variables(instance: Instance) -> int:
    """Return how many variables the program has: slots from each job's release on."""
    horizon = num_slots(instance)
    served = instance.processing > 0
    return int(np.sum(horizon - instance.ready[served]))


def solve(instance: Instance) -> Solution:
    """Solve a slotted instance with SciPy's HiGHS.

    Jobs with equal tails may trade slots at no cost; they are put in order of (ready, index) in the slots
    that the program gives them together, which makes the pieces those of ``jackson.solve``.

    Raises
    ------
    TooLarge
        Beyond `MAX_VARIABLES`.
    NoOptimum
        If HiGHS fails.
    """
    variables = num_variables(instance)
    if variables > MAX_VARIABLES:
        raise TooLarge(variables, MAX_VARIABLES)
    served = np.flatnonzero(instance.processing > 0)
    slots = np.empty(0, dtype=np.int64)
    owners = np.empty(0, dtype=np.int64)
    if len(served):
        slots, owners = _optimum(instance, served, num_slots(instance))
    return _assemble(instance, slots, owners)


def _optimum(instance: Instance, served: IntArray, horizon: int) -> tuple[IntArray, IntArray]:
    """Return the slots in use and the job that each serves, from the LP's optimal vertex."""
    weights = np.searchsorted(np.unique(instance.tail[served]), instance.tail[served]) + 1
    ready = instance.ready[served].astype(np.int64)
    lengths = horizon - ready
    rows = np.repeat(np.arange(len(served)), lengths)
    slots = np.concatenate([np.arange(start, horizon) for start in ready])
    columns = np.arange(len(slots))
    ones = np.ones(len(slots))
    result = linprog(  # type: ignore[call-overload]  # the stubs know no sparse matrices
        c=(slots * weights[rows]).astype(np.float64),
        A_eq=csr_array((ones, (rows, columns)), shape=(len(served), len(slots))),
        b_eq=instance.processing[served],
        A_ub=csr_array((ones, (slots, columns)), shape=(horizon, len(slots))),
        b_ub=np.ones(horizon),
        bounds=(0, 1),
        method="highs-ds",
    )
    if result.status != 0:
        raise NoOptimum(result.message)
    chosen = result.x > 0.5
    if not np.allclose(result.x, chosen, atol=1e-6):
        raise NoOptimum("the optimum is no vertex: a slot is shared")
    order = np.argsort(slots[chosen], kind="stable")
    return slots[chosen][order], served[rows[chosen]][order]


def _assemble(instance: Instance, slots: IntArray, owners: IntArray) -> Solution:
    owners = owners.copy()
    for tail in np.unique(instance.tail[owners]):
        places = np.flatnonzero(instance.tail[owners] == tail)
        jobs = np.unique(owners[places])
        jobs = jobs[np.argsort(instance.ready[jobs], kind="stable")]
        owners[places] = np.repeat(jobs, instance.processing[jobs].astype(np.int64))
    completion: FloatArray = instance.ready.astype(np.float64)
    np.maximum.at(completion, owners, slots + 1.0)
    objective = float(np.max(completion + instance.tail, initial=0.0))
    starts = slots.astype(np.float64)
    ends = starts + np.float64(1)
    return joined(owners, starts, ends, completion, objective)
