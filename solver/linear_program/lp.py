"""The PACE paper's oracle: a linear program over slots whose vertices are integer.

x[i, t] = 1 when slot t serves job i. Each job gets its p slots (3), a slot serves at most one job (6), and no
job is served before r (7). This is a transportation polytope. Its matrix is totally unimodular (Theorem 2),
so the LP's optimal vertices are schedules.

The paper prices x[i, t] at (T N)^(t + q_i), which is beyond the range of doubles. Here the price is t * w_i,
where w_i is the rank of q_i among the distinct tails, from 1. Take slots t1 < t2 and jobs i, j released by t1
with q_i > q_j. Serving i first costs (t2 - t1)(w_i - w_j) > 0 less, and moving any slot's work to an earlier
free slot costs less too. So every optimum serves the longest tail in every slot, and longest tail first
minimizes the maximum of t + q (``pace.solver.one_machine``). Prices are integers, so rounding confuses no
tails.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.one_machine import Instance, Solution, joined

MAX_VARIABLES = 4_000_000


class TooLarge(ValueError):
    """The linear program would have more variables than its limit."""

    def __init__(self, variables: int, limit: int) -> None:
        self.variables = variables
        self.limit = limit
        super().__init__(f"{variables} variables, of {limit} at most")


class NoOptimum(RuntimeError):
    """The LP solver ended without an optimal vertex; the message names the solver and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotProgram:
    """The linear program of a slotted instance: one variable x for each job and each slot that may serve it.

    Attributes
    ----------
    jobs, slots : integer arrays of shape (num_variables,)
        The job and the slot of each variable. Only jobs with a processing time are counted.
    prices : array of shape (num_variables,)
        The price of each variable, a whole number.
    processing : array of shape (num_jobs,)
        Number of slots that each job needs.
    num_slots
        Number of slots.
    """

    jobs: IntArray
    slots: IntArray
    prices: FloatArray
    processing: FloatArray
    num_slots: int


ProgramSolver = Callable[[SlotProgram], FloatArray]


def num_slots(instance: Instance) -> int:
    """Return the number of slots within which a schedule without needless idling serves all jobs."""
    now = 0.0
    for job in np.argsort(instance.ready, kind="stable"):
        if instance.processing[job] > 0:
            now = max(now, instance.ready[job]) + instance.processing[job]
    return int(now)


def num_variables(instance: Instance) -> int:
    """Return the number of variables: over all jobs, the slots from the job's release on."""
    horizon = num_slots(instance)
    served = instance.processing > 0
    return int(np.sum(horizon - instance.ready[served]))


def solve_with_highs(program: SlotProgram) -> FloatArray:
    """Return the x of an optimal vertex, found by the dual simplex of SciPy's HiGHS.

    Raises
    ------
    NoOptimum
        If HiGHS fails.
    """
    columns = np.arange(len(program.slots))
    ones = np.ones(len(columns))
    jobs = (len(program.processing), len(columns))
    slots = (program.num_slots, len(columns))
    result = linprog(  # type: ignore[call-overload]  # the stubs know no sparse matrices
        c=program.prices,
        A_eq=csr_array((ones, (program.jobs, columns)), shape=jobs),
        b_eq=program.processing,
        A_ub=csr_array((ones, (program.slots, columns)), shape=slots),
        b_ub=np.ones(program.num_slots),
        bounds=(0, 1),
        method="highs-ds",
    )
    if result.status != 0:
        raise NoOptimum(f"HiGHS: {result.message}")
    x: FloatArray = result.x
    return x


def solve(
    instance: Instance, solver: ProgramSolver = solve_with_highs, *, max_variables: int = MAX_VARIABLES
) -> Solution:
    """Solve a slotted instance by its linear program.

    Jobs with equal tails can trade slots at no cost. They are served by ready time, then by index, in the
    slots that the program gives them together. So the pieces are those of ``one_machine.solve``.

    Raises
    ------
    TooLarge
        If the program has more than `max_variables` variables.
    NoOptimum
        If the solver fails, or returns a point at which jobs share a slot.
    """
    variables = num_variables(instance)
    if variables > max_variables:
        raise TooLarge(variables, max_variables)
    served = np.flatnonzero(instance.processing > 0)
    slots = np.empty(0, dtype=np.int64)
    owners = np.empty(0, dtype=np.int64)
    if len(served):
        program = _program(instance, served)
        x = solver(program)
        chosen = x > 0.5
        if not np.allclose(x, chosen, atol=1e-6):
            raise NoOptimum("the optimum is not a vertex: jobs share a slot; use another LP solver")
        order = np.argsort(program.slots[chosen], kind="stable")
        slots, owners = program.slots[chosen][order], served[program.jobs[chosen]][order]
    return _assemble(instance, slots, owners)


def _program(instance: Instance, served: IntArray) -> SlotProgram:
    horizon = num_slots(instance)
    weights = np.searchsorted(np.unique(instance.tail[served]), instance.tail[served]) + 1
    ready = instance.ready[served].astype(np.int64)
    jobs = np.repeat(np.arange(len(served)), horizon - ready)
    slots = np.concatenate([np.arange(start, horizon) for start in ready])
    return SlotProgram(
        jobs=jobs,
        slots=slots,
        prices=(slots * weights[jobs]).astype(np.float64),
        processing=instance.processing[served],
        num_slots=horizon,
    )


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
