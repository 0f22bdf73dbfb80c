"""OR-Tools in a process of its own: its libraries cannot share one with PyTorch's and HiGHS.

Reads one instance a line, as JSON [[ready, processing, tail], ...] in slots, and answers with its optimum.
"""

import json
import sys
import warnings
from typing import Any


def optimum(jobs: list[tuple[float, float, float]]) -> float:
    """Minimize the maximum of end + tail: which job each slot serves, and nothing else.

    Tails are multiples of 1/8 slot, so that eight times the objective is an integer.
    """
    with warnings.catch_warnings():
        # SWIG's types lack __module__; nothing here can mend that.
        warnings.simplefilter("ignore", DeprecationWarning)
        from ortools.sat.python import cp_model
    model: Any = cp_model.CpModel()
    horizon = int(max((ready for ready, _, _ in jobs), default=0) + sum(length for _, length, _ in jobs))
    objective = model.new_int_var(0, 8 * (horizon + 100), "objective")
    serves = {
        (job, slot): model.new_bool_var(f"x{job},{slot}")
        for job, (ready, _, _) in enumerate(jobs)
        for slot in range(int(ready), horizon)
    }
    for job, (ready, processing, tail) in enumerate(jobs):
        mine = [(slot, serves[job, slot]) for slot in range(int(ready), horizon)]
        model.add(sum(served for _, served in mine) == int(processing))
        model.add(objective >= int(8 * (ready + tail)))
        for slot, served in mine:
            model.add(objective >= int(8 * (slot + 1 + tail))).only_enforce_if(served)
    for slot in range(horizon):
        model.add_at_most_one(served for (_, own), served in serves.items() if own == slot)
    model.minimize(objective)
    solver: Any = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return float(solver.objective_value) / 8


if __name__ == "__main__":
    for line in sys.stdin:
        print(optimum(json.loads(line)), flush=True)
