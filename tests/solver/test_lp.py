"""The slotted linear program: equal to longest tail first, totally unimodular, and right by CP-SAT's word."""

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pulp
import pytest
from hypothesis import given

from pace.solver import one_machine
from pace.solver.arrays import IntArray
from pace.solver.linear_program import lp, lp_model
from pace.solver.one_machine import Instance, Solution
from tests.strategies import instance_of, properties, slotted_instances

PAPER = instance_of([(1, 4, 1), (2, 2, 3), (3, 1, 4)])


def assert_equal(one: Solution, other: Solution) -> None:
    """Same pieces, ends and objective, to the last bit."""
    assert one.jobs.tolist() == other.jobs.tolist()
    assert one.starts.tolist() == other.starts.tolist()
    assert one.ends.tolist() == other.ends.tolist()
    assert one.completion.tolist() == other.completion.tolist()
    assert one.objective == other.objective


def test_the_papers_example() -> None:
    """Slots of 1 s: g3 in 1, g2 in 2, g1 in 3, g2 in 4, g3 in 5 to 7; the window is 9."""
    solution = lp.solve(PAPER)
    assert solution.jobs.tolist() == [0, 1, 2, 1, 0]
    assert solution.starts.tolist() == [1, 2, 3, 4, 5]
    assert solution.ends.tolist() == [2, 3, 4, 5, 8]
    assert solution.objective == 9


@pytest.mark.parametrize("jobs", [[], [(3, 0, 2)], [(0, 0, 0), (1, 0, 5)], [(2, 3, 0.5)]])
def test_small_and_empty_instances(jobs: list[tuple[float, float, float]]) -> None:
    """No jobs, jobs without processing, one job."""
    assert_equal(lp.solve(instance_of(jobs)), one_machine.solve(instance_of(jobs)))


@given(slotted_instances(8))
@properties(60)
def test_the_program_gives_the_pieces_of_longest_tail_first(instance: Instance) -> None:
    """Theorem 2 of the PACE paper: on slots both oracles give one schedule, ties included."""
    assert_equal(lp.solve(instance), one_machine.solve(instance))


def test_a_middle_sized_instance() -> None:
    """Sixty jobs over some hundred slots with many equal tails: still the same pieces."""
    generator = np.random.default_rng(7)
    instance = Instance(
        ready=generator.integers(0, 150, 60).astype(np.float64),
        processing=generator.integers(0, 7, 60).astype(np.float64),
        tail=generator.integers(0, 40, 60) / 3,
    )
    assert_equal(lp.solve(instance), one_machine.solve(instance))


def test_the_number_of_variables_is_counted_before_they_are_made() -> None:
    """Slots 1 to 7 for g3, 2 to 7 for g2, 3 to 7 for g1: 7 + 6 + 5."""
    assert lp.num_slots(PAPER) == 8
    assert lp.num_variables(PAPER) == 18


def test_a_program_that_is_too_large_is_refused() -> None:
    """The guard names how many variables it would have."""
    jobs = instance_of([(0, 1e6, number) for number in range(5)])
    with pytest.raises(lp.TooLarge) as refusal:
        lp.solve(jobs)
    assert refusal.value.variables == 25_000_000
    with pytest.raises(lp.TooLarge):
        lp_model.build(instance_of([(0, 1e5, 1), (0, 2e5, 2)]))


def constraint_matrix(instance: Instance) -> IntArray:
    """Return constraints (3) and (6) as they are written in the paper, one column for each x[i, t]."""
    columns = [
        (job, slot)
        for job in range(len(instance))
        if instance.processing[job] > 0
        for slot in range(int(instance.ready[job]), lp.num_slots(instance))
    ]
    assert len(columns) == lp.num_variables(instance)
    serve = [[int(job == own) for own, _ in columns] for job in range(len(instance))]
    share = [[int(slot == own) for _, own in columns] for slot in range(lp.num_slots(instance))]
    return np.array([row for row in [*serve, *share] if any(row)], dtype=np.int64).reshape(-1, len(columns))


def determinant(matrix: list[list[int]]) -> int:
    """Expand along the first row: exact in integers."""
    if not matrix:
        return 1
    first, *rest = matrix
    return sum(
        (-1) ** at * value * determinant([row[:at] + row[at + 1 :] for row in rest])
        for at, value in enumerate(first)
        if value
    )


@pytest.mark.parametrize(
    "jobs",
    [
        [(0, 1, 1), (0, 1, 2)],
        [(0, 1, 1), (1, 2, 2)],
        [(0, 2, 1), (1, 1, 2), (2, 1, 3)],
        [(0, 1, 1), (0, 1, 2), (0, 1, 3)],
    ],
)
def test_every_square_submatrix_has_determinant_minus_one_zero_or_one(
    jobs: list[tuple[float, float, float]],
) -> None:
    """Total unimodularity by its definition: every choice of as many rows as columns."""
    matrix = constraint_matrix(instance_of(jobs)).tolist()
    seen = set()
    for size in range(1, min(len(matrix), len(matrix[0])) + 1):
        for rows in combinations(matrix, size):
            for columns in combinations(range(len(matrix[0])), size):
                seen.add(determinant([[row[column] for column in columns] for row in rows]))
    assert seen <= {-1, 0, 1}
    assert {-1, 1} <= seen


@pytest.fixture(scope="module")
def cp_sat() -> Iterator[Callable[[Instance], float]]:
    """Return what asks OR-Tools, in its own process, for the optimum of a slotted instance."""
    command = [sys.executable, str(Path(__file__).with_name("cp_sat.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answered = process.stdin, process.stdout

        def optimum(instance: Instance) -> float:
            jobs = zip(
                instance.ready.tolist(), instance.processing.tolist(), instance.tail.tolist(), strict=True
            )
            asked.write(json.dumps(list(jobs)) + "\n")
            asked.flush()
            return float(answered.readline())

        yield optimum
        asked.close()


@pytest.mark.slow
@given(instance=slotted_instances(5, most=4))
@properties(40)
def test_cp_sat_finds_the_same_optimum(cp_sat: Callable[[Instance], float], instance: Instance) -> None:
    """A solver that shares nothing with ours, neither the theorem nor the relaxation, agrees."""
    assert cp_sat(instance) == one_machine.solve(instance).objective == lp.solve(instance).objective


def solve_with_cbc(problem: Any) -> None:
    """Solve with the CBC that PuLP 3 brings along; PuLP 4 will want it installed apart, and says so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PULP_CBC_CMD is deprecated", DeprecationWarning)
        solver = pulp.PULP_CBC_CMD(msg=False)
    assert pulp.LpStatus[problem.solve(solver)] == "Optimal"


def solve_audit_model(instance: Instance) -> dict[tuple[int, int], float]:
    """Solve the PuLP model; return the value of every x."""
    problem = lp_model.build(instance)
    solve_with_cbc(problem)
    return {
        (int(job), int(slot)): variable.value()
        for variable in problem.variables()
        for kind, job, slot, *_ in [variable.name.split("_")]
        if kind == "x"
    }


def served_slots(solution: Solution) -> dict[int, list[int]]:
    """Return the slots in which each job is served."""
    slots: dict[int, list[int]] = {}
    for job, start, end in zip(solution.jobs.tolist(), solution.starts, solution.ends, strict=True):
        slots.setdefault(job, []).extend(range(int(start), int(end)))
    return slots


@pytest.mark.parametrize("seed", range(6))
def test_the_audit_model_serves_the_same_slots(seed: int) -> None:
    """The lambda-representation (12)-(14) solved by CBC is the sparse program's answer, without ties."""
    generator = np.random.default_rng(seed)
    instance = PAPER
    if seed:
        instance = Instance(
            ready=generator.integers(0, 8, 6).astype(np.float64),
            processing=generator.integers(0, 4, 6).astype(np.float64),
            tail=1.5 * generator.permutation(6).astype(np.float64),
        )
    values = solve_audit_model(instance)
    assert {round(value, 6) for value in values.values()} <= {0.0, 1.0}
    slots: dict[int, list[int]] = {}
    for (job, slot), value in sorted(values.items()):
        if value > 0.5:
            slots.setdefault(job, []).append(slot)
    assert slots == served_slots(lp.solve(instance))


@pytest.mark.parametrize("suffix", [".lp", ".mps"])
def test_the_audit_model_is_written_with_names(tmp_path: Path, suffix: str) -> None:
    """The file names variables and constraints as the paper does."""
    path = tmp_path / f"program{suffix}"
    lp_model.write(PAPER, path)
    text = path.read_text()
    for name in ("x_0_1", "lambda_2_3_0", "lambda_2_3_1", "serve_1", "slot_7", "value_1_2", "weight_1_2"):
        assert name in text


def test_a_written_program_reads_back_with_the_same_optimum(tmp_path: Path) -> None:
    """What is written as .mps is the same program to whoever reads it."""
    path = tmp_path / "program.mps"
    lp_model.write(PAPER, path)
    _, read = pulp.LpProblem.fromMPS(str(path))
    built = lp_model.build(PAPER)
    for problem in (read, built):
        solve_with_cbc(problem)
    assert pulp.value(read.objective) == pytest.approx(pulp.value(built.objective))
