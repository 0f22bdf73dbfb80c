"""Longest tail first: the paper's example, ties, optimality against every set of jobs, and certificates."""

import numpy as np
import pytest
from hypothesis import given

from pace.solver.one_machine import Instance, Solution, certify, solve
from tests.solver.plain_jackson import solve_plainly
from tests.strategies import (
    eighths,
    instance_of,
    instances,
    properties,
    slotted_instances,
    strongest_set,
    times,
)


def pieces(solution: Solution) -> list[tuple[int, float, float]]:
    """Return (job, start, end) in order of time."""
    return list(zip(solution.jobs.tolist(), solution.starts.tolist(), solution.ends.tolist(), strict=True))


def assert_is_schedule(instance: Instance, solution: Solution) -> None:
    """Precedence, one job at a time, every job served in full, and the objective that follows."""
    lengths = solution.ends - solution.starts
    assert np.all(lengths >= 0)
    assert np.all(solution.starts >= instance.ready[solution.jobs])
    assert np.all(solution.starts[1:] >= solution.ends[:-1])
    served = np.bincount(solution.jobs, weights=lengths, minlength=len(instance))
    np.testing.assert_allclose(served, instance.processing, rtol=1e-9, atol=1e-9)
    completion = instance.ready.copy()
    np.maximum.at(completion, solution.jobs, solution.ends)
    np.testing.assert_array_equal(solution.completion, completion)
    assert solution.objective == np.max(completion + instance.tail, initial=0.0)


def test_the_papers_example_in_pieces() -> None:
    """Gradients ready at 1, 2, 3 with 4, 2, 1 s to send and 1, 3, 4 s of compute after them.

    At 2 s g2 (tail 3) preempts g3 (tail 1), at 3 s g1 (tail 4) preempts g2; g1 ends at 4, g2 at 5, g3 at 8:
    max(4 + 4, 5 + 3, 8 + 1) = 9.
    """
    solution = solve(instance_of([(1, 4, 1), (2, 2, 3), (3, 1, 4)]))
    assert pieces(solution) == [(0, 1, 2), (1, 2, 3), (2, 3, 4), (1, 4, 5), (0, 5, 8)]
    assert solution.completion.tolist() == [8, 5, 4]
    assert solution.objective == 9


def test_no_jobs_make_no_pieces() -> None:
    """An empty instance has the objective 0."""
    solution = solve(instance_of([]))
    assert pieces(solution) == []
    assert solution.objective == 0


def test_a_job_without_processing_is_done_when_it_is_ready() -> None:
    """It takes no piece, preempts nobody, and its tail counts all the same."""
    solution = solve(instance_of([(0, 2, 0), (1, 0, 9)]))
    assert pieces(solution) == [(0, 0, 2)]
    assert solution.completion.tolist() == [2, 1]
    assert solution.objective == 10


def test_equal_tails_keep_the_running_job() -> None:
    """A job released later with the same tail waits, even if it has the smaller index."""
    assert pieces(solve(instance_of([(1, 1, 5), (0, 3, 5)]))) == [(1, 0, 3), (0, 3, 4)]


def test_equal_tails_take_the_earlier_ready_time_then_the_smaller_index() -> None:
    """Three equal tails wait behind a longer one: ready time decides, then the index."""
    jobs = [(2, 1, 5), (1, 1, 5), (1, 1, 5), (0, 4, 6)]
    assert [job for job, _, _ in pieces(solve(instance_of(jobs)))] == [3, 1, 2, 0]


def test_a_job_released_as_another_ends_does_not_cut_it() -> None:
    """Pieces of one job that touch are one piece."""
    solution = solve(instance_of([(0, 4, 1), (2, 0, 9), (4, 1, 9)]))
    assert pieces(solution) == [(0, 0, 4), (2, 4, 5)]


@given(instances(10))
@properties(60)
def test_no_set_of_jobs_proves_more_and_one_proves_as_much(instance: Instance) -> None:
    """The makespan equals the greatest of min r + sum p + min q over all 2^n sets."""
    assert solve(instance).objective == strongest_set(instance)


@given(instances(30, times()))
@properties(60)
def test_pieces_form_a_schedule_with_few_preemptions(instance: Instance) -> None:
    """Precedence, one at a time, everything served, and at most n - 1 preemptions."""
    solution = solve(instance)
    assert_is_schedule(instance, solution)
    assert len(solution.jobs) - len(set(solution.jobs.tolist())) <= max(len(instance) - 1, 0)


@given(instances(40, times()))
@properties(60)
def test_the_compiled_loop_and_its_plain_twin_agree(instance: Instance) -> None:
    """Same pieces and completion times, to the last bit."""
    compiled, plain = solve(instance), solve_plainly(instance)
    assert pieces(compiled) == pieces(plain)
    assert compiled.completion.tolist() == plain.completion.tolist()
    assert compiled.objective == plain.objective


@given(slotted_instances(8))
@properties(50)
def test_whole_slots_in_whole_slots_out(instance: Instance) -> None:
    """Where ready times and processing are whole slots, so are the ends of all pieces."""
    solution = solve(instance)
    assert np.all(solution.starts % 1 == 0)
    assert np.all(solution.ends % 1 == 0)


@given(instances(8, eighths(4), min_jobs=1))
@properties(60)
def test_later_or_longer_is_never_faster(instance: Instance) -> None:
    """Raising a ready time, a processing time or a tail never lowers the objective."""
    before = solve(instance).objective
    for field in ("ready", "processing", "tail"):
        values = {name: getattr(instance, name).copy() for name in ("ready", "processing", "tail")}
        values[field][0] += 0.5
        assert solve(Instance(**values)).objective >= before


@pytest.mark.parametrize("n", [1000, 5000])
def test_many_jobs(n: int) -> None:
    """Thousands of jobs: the compiled loop still equals its twin and is a schedule."""
    generator = np.random.default_rng(n)
    instance = Instance(
        ready=generator.integers(0, 3 * n, n).astype(np.float64),
        processing=generator.integers(0, 6, n).astype(np.float64),
        tail=generator.integers(0, n, n).astype(np.float64),
    )
    solution = solve(instance)
    assert_is_schedule(instance, solution)
    if n <= 1000:
        assert pieces(solution) == pieces(solve_plainly(instance))


def test_slots_round_ready_and_processing_up_and_leave_tails() -> None:
    """Eq. 3, without taking 1.1 / 0.1 = 11.000000000000002 for twelve slots."""
    slotted = instance_of([(1.1, 0.3, 0.25), (0.31, 1e-13, 1.0), (0.0, 0.0, 0.0)]).in_slots(0.1)
    assert slotted.ready.tolist() == [11, 4, 0]
    assert slotted.processing.tolist() == [3, 1, 0]
    assert slotted.tail.tolist() == [2.5, 10, 0]


def test_the_papers_example_is_proved_by_all_three() -> None:
    """{1, 2, 3}: ready from 1 s, 4 + 2 + 1 = 7 s to send, a tail of at least 1 s: 1 + 7 + 1 = 9."""
    instance = instance_of([(1, 4, 1), (2, 2, 3), (3, 1, 4)])
    proof = certify(instance, solve(instance))
    assert proof.jobs == (0, 1, 2)
    assert (proof.min_ready, proof.total_processing, proof.min_tail) == (1, 7, 1)
    assert proof.bound == 9


def test_idle_time_ends_the_set() -> None:
    """What was served before the network last idled has no part in the proof."""
    instance = instance_of([(0, 1, 1), (5, 2, 3), (6, 2, 3)])
    proof = certify(instance, solve(instance))
    assert proof.jobs == (1, 2)
    assert proof.bound == 5 + 4 + 3


def test_shorter_tails_end_the_set() -> None:
    """A job of shorter tail served before the critical ones has no part in the proof."""
    instance = instance_of([(0, 2, 0), (1, 2, 5)])
    assert certify(instance, solve(instance)).jobs == (1,)


def test_a_job_without_processing_proves_itself() -> None:
    """Ready plus tail of a job that needs no time can be the longest."""
    instance = instance_of([(0, 1, 1), (3, 0, 7)])
    proof = certify(instance, solve(instance))
    assert proof.jobs == (1,)
    assert proof.bound == 10


def test_nothing_proves_nothing() -> None:
    """No jobs: the empty set and 0."""
    proof = certify(instance_of([]), solve(instance_of([])))
    assert proof.jobs == ()
    assert proof.bound == 0


@given(instances(12))
@properties(100)
def test_the_set_attains_the_objective_exactly(instance: Instance) -> None:
    """In exact arithmetic the three numbers add up to the makespan."""
    solution = solve(instance)
    proof = certify(instance, solution)
    chosen = list(proof.jobs)
    assert proof.bound == solution.objective
    if chosen:
        assert proof.min_ready == instance.ready[chosen].min()
        assert proof.total_processing == instance.processing[chosen].sum()
        assert proof.min_tail == instance.tail[chosen].min()


@given(slotted_instances(8))
@properties(50)
def test_the_set_attains_the_slotted_objective(instance: Instance) -> None:
    """The same on whole slots."""
    solution = solve(instance)
    assert certify(instance, solution).bound == solution.objective


@given(instances(20, times()))
@properties(100)
def test_the_set_attains_the_objective_beside_tiny_times(instance: Instance) -> None:
    """Times from 1e-9 to 1e3 s in one instance: no more than rounding is lost."""
    solution = solve(instance)
    proof = certify(instance, solution)
    np.testing.assert_allclose(proof.bound, solution.objective, rtol=1e-12, atol=1e-12)


def test_a_time_too_short_to_move_the_clock_does_not_break_the_proof() -> None:
    """At 1e3 s a piece of 1e-14 s ends where it starts."""
    instance = instance_of([(0, 1e3, 1), (0, 1e-14, 1), (0, 1e-14, 0.5), (1e3, 1e-14, 1)])
    solution = solve(instance)
    np.testing.assert_allclose(certify(instance, solution).bound, solution.objective, rtol=1e-12)
