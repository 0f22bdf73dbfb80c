"""The PACE paper's linear program written out with named variables, for audit.

It has equations (3), (6), (7) and the paper's lambda-representation: the convex price of each x[i, t] is
expressed over its two breakpoints 0 and 1, with x = 0 * lambda_0 + 1 * lambda_1 and lambda_0 + lambda_1 = 1.
Prices are those of ``pace.solver.linear_program.lp``. It is much slower than that sparse model. It is meant
for reading, and for other solvers that read .lp or .mps files.
"""

from pathlib import Path

import numpy as np
import pulp

from pace.solver.linear_program.lp import TooLarge, num_slots, num_variables
from pace.solver.one_machine import Instance

MAX_VARIABLES = 200_000
SUFFIXES = (".lp", ".mps")


def build(instance: Instance) -> pulp.LpProblem:
    """Return the program of a slotted instance.

    Variables are ``x_i_t`` (slot t serves job i) and ``lambda_i_t_0``, ``lambda_i_t_1``. Constraints are
    ``serve_i`` (3), ``slot_t`` (6), and of the lambda-representation ``value_i_t`` (x is its breakpoints'
    mean) and ``weight_i_t`` (the weights sum to 1). Slots before a job's release have no variables, which is
    (7).

    Raises
    ------
    TooLarge
        If there are more than `MAX_VARIABLES` variables ``x_i_t``.
    """
    variables = num_variables(instance)
    if variables > MAX_VARIABLES:
        raise TooLarge(variables, MAX_VARIABLES)
    horizon = num_slots(instance)
    served = [int(job) for job in np.flatnonzero(instance.processing > 0)]
    weights = np.searchsorted(np.unique(instance.tail[served]), instance.tail[served]) + 1
    problem = pulp.LpProblem("pace_oracle", pulp.LpMinimize)
    price = []
    by_slot: dict[int, list[pulp.LpVariable]] = {slot: [] for slot in range(horizon)}
    by_job: dict[int, list[pulp.LpVariable]] = {job: [] for job in served}
    links = []
    for job, weight in zip(served, weights.tolist(), strict=True):
        for slot in range(int(instance.ready[job]), horizon):
            at = f"{job}_{slot}"
            x = problem.add_variable(f"x_{at}", 0, 1)
            zero = problem.add_variable(f"lambda_{at}_0", 0)
            one = problem.add_variable(f"lambda_{at}_1", 0)
            price.append(slot * weight * one)
            by_slot[slot].append(x)
            by_job[job].append(x)
            links.append((x == one, f"value_{at}"))
            links.append((zero + one == 1, f"weight_{at}"))
    problem += pulp.lpSum(price), "price"
    for job in served:
        problem += pulp.lpSum(by_job[job]) == int(instance.processing[job]), f"serve_{job}"
    for slot, in_slot in by_slot.items():
        if in_slot:
            problem += pulp.lpSum(in_slot) <= 1, f"slot_{slot}"
    for constraint, name in links:
        problem += constraint, name
    return problem


def write(instance: Instance, path: Path) -> None:
    """Write the program in the format that the ending of `path` names, one of `SUFFIXES`."""
    problem = build(instance)
    if path.suffix == ".lp":
        problem.writeLP(str(path))
    else:
        problem.writeMPS(str(path))
