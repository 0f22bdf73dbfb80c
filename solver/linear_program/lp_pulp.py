"""Solves the slotted linear program by PuLP, with CBC or any other solver that PuLP finds.

PuLP writes the program to a file and starts the solver as a process, so this takes longer than SciPy's HiGHS.
``pace.solver.linear_program.lp_model`` has the form with the paper's names, for reading.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pulp

from pace.solver.arrays import FloatArray
from pace.solver.linear_program.lp import NoOptimum, SlotProgram
from pace.solver.linear_program.lp import solve as solve_program
from pace.solver.one_machine import Instance, Solution

# Each variable is a Python object and a line of the file.
MAX_VARIABLES = 500_000
# An installed CBC first, then the one that PuLP 3 includes.
CBC = ("COIN_CMD", "PULP_CBC_CMD")


class NoSuchSolver(LookupError):
    """PuLP cannot run a solver of this name on this machine; the message lists those that it can run."""


def available() -> list[str]:
    """Return the names of the solvers that PuLP can run on this machine."""
    with _without_deprecations():
        return list(pulp.listSolvers(onlyAvailable=True))


def oracle(name: str | None = None) -> Callable[[Instance], Solution]:
    """Return a function that solves slotted instances with the PuLP solver of this name (default: CBC).

    Raises
    ------
    NoSuchSolver
        If PuLP cannot run it on this machine.
    """
    usable = available()
    found = next((each for each in (CBC if name is None else (name,)) if each in usable), None)
    if found is None:
        raise NoSuchSolver(", ".join(usable) or "none")

    def by_pulp(program: SlotProgram) -> FloatArray:
        return _solve(program, found)

    def solve(instance: Instance) -> Solution:
        return solve_program(instance, by_pulp, max_variables=MAX_VARIABLES)

    return solve


def _solve(program: SlotProgram, name: str) -> FloatArray:
    problem = pulp.LpProblem("slots", pulp.LpMinimize)
    variables = [problem.add_variable(f"x{number}", 0, 1) for number in range(len(program.slots))]
    problem.setObjective(pulp.LpAffineExpression(zip(variables, program.prices.tolist(), strict=True)))
    of_job: list[list[pulp.LpVariable]] = [[] for _ in program.processing]
    in_slot: list[list[pulp.LpVariable]] = [[] for _ in range(program.num_slots)]
    for variable, job, slot in zip(variables, program.jobs.tolist(), program.slots.tolist(), strict=True):
        of_job[job].append(variable)
        in_slot[slot].append(variable)
    for serving, slots in zip(of_job, program.processing.tolist(), strict=True):
        problem.addConstraint(pulp.LpAffineExpression((each, 1) for each in serving) == int(slots))
    for sharing in in_slot:
        if sharing:
            problem.addConstraint(pulp.LpAffineExpression((each, 1) for each in sharing) <= 1)
    with _without_deprecations():
        solver = pulp.getSolver(name, msg=False)
    try:
        status = problem.solve(solver)
    except pulp.PulpSolverError as error:
        raise NoOptimum(f"{name}: {error}") from None
    if status != pulp.LpStatusOptimal:
        raise NoOptimum(f"{name}: {pulp.LpStatus[status]}")
    return np.array([variable.varValue or 0.0 for variable in variables])


@contextmanager
def _without_deprecations() -> Iterator[None]:
    """Hide PuLP 3's warning that PuLP 4 will not include CBC: it does not concern a user of PACE."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
