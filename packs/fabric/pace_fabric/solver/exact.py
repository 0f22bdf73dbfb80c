"""The best order and rates of a small batch on constant links: a mixed-integer program, for audit.

Binary z[g, i] puts update g at commit position i. Interval i, of length L_i, ends with the i-th commit and
carries x[g, i] bytes of update g. First the number of kept updates is maximized, then the sum of commit times
minimized. Every transfer goes directly to the server.
"""

from dataclasses import dataclass

import numpy as np
import pulp
from scipy.optimize import Bounds as BoxBounds
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_array

from pace.solver.arrays import FloatArray
from pace_fabric.solver.capacity import Capacities
from pace_fabric.solver.updates import Updates

MOST_EXACT = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactOrder:
    """An optimum of the program.

    Attributes
    ----------
    commits
        Kept updates, in commit order.
    commit_s
        When each is committed.
    pieces
        For each of `commits`, (n, 3): start, end and rate of its transfer.
    """

    commits: tuple[int, ...]
    commit_s: FloatArray
    pieces: tuple[FloatArray, ...]

    @property
    def total_s(self) -> float:
        """The sum of commit times."""
        return float(self.commit_s.sum())


def solve_exactly(updates: Updates, capacities: Capacities) -> ExactOrder:
    """Solve to optimality with SciPy's HiGHS.

    Raises
    ------
    ValueError
        For more than 7 updates, links that change, several updates on a host, or updates that are not ready.
    RuntimeError
        If the solver ends without an optimum.
    """
    n = len(updates)
    if n > MOST_EXACT:
        raise ValueError(f"{n} updates: the exact order takes at most {MOST_EXACT}")
    down = 2 * updates.server + 1
    if any(capacities.counts[[2 * host, down]].max() > 1 for host in updates.host.tolist()):
        raise ValueError("the exact order needs links that do not change")
    if len(set(updates.host.tolist())) < n or updates.ready.any():
        raise ValueError("the exact order needs one update a host, all ready now")
    if n == 0:
        return ExactOrder(commits=(), commit_s=np.empty(0), pieces=())
    best_kept = 0
    for stage in ("kept", "time"):
        program, variables = build(updates, capacities, None if stage == "kept" else best_kept)
        solve_with_highs(program)
        if stage == "kept":
            best_kept = round(sum(a.value() for a in variables.kept))
    commits = [g for i in range(best_kept) for g in range(n) if variables.place[g][i].value() > 0.5]
    scale = variables.scale
    lengths = np.array([max(length.value(), 0.0) for length in variables.length])[:best_kept]
    lengths *= variables.scale_s
    ends = np.cumsum(lengths)
    pieces = []
    for g in commits:
        rows = []
        for i in range(best_kept):
            carried = max(variables.carried[g][i].value(), 0.0) * scale
            if carried > 1e-9 * updates.size[g] and lengths[i] > 0:
                rows.append((ends[i] - lengths[i], ends[i], carried / lengths[i]))
        pieces.append(np.array(rows).reshape(-1, 3))
    return ExactOrder(commits=tuple(commits), commit_s=ends, pieces=tuple(pieces))


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderVariables:
    """Variables of the program; bytes are in units of `scale`, and times of `scale_s` seconds."""

    place: list[list[pulp.LpVariable]]
    length: list[pulp.LpVariable]
    carried: list[list[pulp.LpVariable]]
    kept: list[pulp.LpVariable]
    scale: float
    scale_s: float


def build(
    updates: Updates, capacities: Capacities, num_kept: int | None
) -> tuple[pulp.LpProblem, OrderVariables]:
    """Return the program that maximizes the number kept or, that number fixed, minimizes commit times."""
    n = len(updates)
    scale = float(updates.size.max()) or 1.0
    # What is on the server's host is there already.
    size = np.where(updates.host == updates.server, 0.0, updates.size / scale)
    bytes_per_s = capacities.rate_at(2 * updates.server + 1, 0.0)
    # The solver's tolerances are absolute: the server's link takes one unit of time for the largest update.
    scale_s = scale / bytes_per_s if bytes_per_s > 0 else 1.0
    server = bytes_per_s * scale_s / scale
    rate = [
        min(capacities.rate_at(2 * host, 0.0) * scale_s / scale, server) for host in updates.host.tolist()
    ]
    program = pulp.LpProblem("fabric_order", pulp.LpMaximize if num_kept is None else pulp.LpMinimize)
    both, positions = range(n), range(n)
    variables = OrderVariables(
        place=[[program.add_variable(f"z_{g}_{i}", cat="Binary") for i in positions] for g in both],
        length=[program.add_variable(f"L_{i}", 0) for i in positions],
        carried=[[program.add_variable(f"x_{g}_{i}", 0) for i in positions] for g in both],
        kept=[program.add_variable(f"a_{g}", 0, 1) for g in both],
        scale=scale,
        scale_s=scale_s,
    )
    z, length, x, a = variables.place, variables.length, variables.carried, variables.kept
    if num_kept is None:
        program += pulp.lpSum(a), "kept"
    else:
        program += pulp.lpSum((num_kept - i) * length[i] for i in range(num_kept)), "commit_times"
        program += pulp.lpSum(a) == num_kept, "keep_as_many"
    for g in both:
        program += pulp.lpSum(z[g]) == a[g], f"placed_{g}"
        program += pulp.lpSum(x[g]) == size[g] * a[g], f"sent_{g}"
        last = int(min(updates.deadline[g], n))
        for i in positions:
            program += x[g][i] <= rate[g] * length[i], f"uplink_{g}_{i}"
            program += x[g][i] <= size[g] * pulp.lpSum(z[g][i:]), f"before_commit_{g}_{i}"
            if i + 1 > last or (rate[g] <= 0 < size[g]):
                program += z[g][i] == 0, f"deadline_{g}_{i}"
    for i in positions:
        program += pulp.lpSum(z[g][i] for g in both) <= 1, f"position_{i}"
        program += pulp.lpSum(x[g][i] for g in both) <= server * length[i], f"downlink_{i}"
        if i:
            used = pulp.lpSum(z[g][i] for g in both)
            program += used <= pulp.lpSum(z[g][i - 1] for g in both), f"no_gap_{i}"
    return program, variables


def solve_with_highs(program: pulp.LpProblem) -> None:
    """Solve a PuLP program with the HiGHS that SciPy carries, and set its variables' values.

    Raises
    ------
    RuntimeError
        If there is no optimum.
    """
    variables = program.variables()
    column = {variable.name: number for number, variable in enumerate(variables)}
    cost = np.zeros(len(variables))
    for variable, value in program.objective.items():
        cost[column[variable.name]] = value
    rows, columns, values, low, high = [], [], [], [], []
    for row, constraint in enumerate(program.constraints()):
        for variable, value in constraint.items():
            rows.append(row)
            columns.append(column[variable.name])
            values.append(value)
        limit = -constraint.constant
        low.append(-np.inf if constraint.sense == pulp.LpConstraintLE else limit)
        high.append(np.inf if constraint.sense == pulp.LpConstraintGE else limit)
    matrix = coo_array((values, (rows, columns)), shape=(len(low), len(variables)))
    result = milp(
        -cost if program.sense == pulp.LpMaximize else cost,
        integrality=np.array([variable.cat == pulp.LpInteger for variable in variables], dtype=np.int64),
        bounds=BoxBounds(
            np.array([-np.inf if v.lowBound is None else v.lowBound for v in variables]),
            np.array([np.inf if v.upBound is None else v.upBound for v in variables]),
        ),
        constraints=LinearConstraint(matrix.tocsr(), np.array(low), np.array(high)),
        options={"mip_rel_gap": 0.0},
    )
    if result.x is None:
        raise RuntimeError(f"the solver found no optimum: {result.message}")
    for variable, value in zip(variables, result.x.tolist(), strict=True):
        variable.varValue = value
