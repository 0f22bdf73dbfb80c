"""The critical set read off a schedule proves its objective."""

import numpy as np
from hypothesis import given

from pace.solver import jackson
from pace.solver.certificate import certify
from pace.solver.instance import Instance
from tests.strategies import instance_of, instances, properties, slotted_instances, times


def test_the_papers_example_is_proved_by_all_three() -> None:
    """{1, 2, 3}: ready from 1 s, 4 + 2 + 1 = 7 s to send, a tail of at least 1 s: 1 + 7 + 1 = 9."""
    instance = instance_of([(1, 4, 1), (2, 2, 3), (3, 1, 4)])
    proof = certify(instance, jackson.solve(instance))
    assert proof.jobs == (0, 1, 2)
    assert (proof.min_ready, proof.total_processing, proof.min_tail) == (1, 7, 1)
    assert proof.bound == 9


def test_idle_time_ends_the_set() -> None:
    """What was served before the network last idled has no part in the proof."""
    instance = instance_of([(0, 1, 1), (5, 2, 3), (6, 2, 3)])
    proof = certify(instance, jackson.solve(instance))
    assert proof.jobs == (1, 2)
    assert proof.bound == 5 + 4 + 3


def test_shorter_tails_end_the_set() -> None:
    """A job of shorter tail served before the critical ones has no part in the proof."""
    instance = instance_of([(0, 2, 0), (1, 2, 5)])
    assert certify(instance, jackson.solve(instance)).jobs == (1,)


def test_a_job_without_processing_proves_itself() -> None:
    """Ready plus tail of a job that needs no time can be the longest."""
    instance = instance_of([(0, 1, 1), (3, 0, 7)])
    proof = certify(instance, jackson.solve(instance))
    assert proof.jobs == (1,)
    assert proof.bound == 10


def test_nothing_proves_nothing() -> None:
    """No jobs: the empty set and 0."""
    proof = certify(instance_of([]), jackson.solve(instance_of([])))
    assert proof.jobs == ()
    assert proof.bound == 0


@given(instances(12))
@properties(200)
def test_the_set_attains_the_objective_exactly(instance: Instance) -> None:
    """In exact arithmetic the three numbers add up to the makespan."""
    solution = jackson.solve(instance)
    proof = certify(instance, solution)
    chosen = list(proof.jobs)
    assert proof.bound == solution.objective
    if chosen:
        assert proof.min_ready == instance.ready[chosen].min()
        assert proof.total_processing == instance.processing[chosen].sum()
        assert proof.min_tail == instance.tail[chosen].min()


@given(slotted_instances(8))
@properties(100)
def test_the_set_attains_the_slotted_objective(instance: Instance) -> None:
    """The same on whole slots."""
    solution = jackson.solve(instance)
    assert certify(instance, solution).bound == solution.objective


@given(instances(20, times()))
@properties(200)
def test_the_set_attains_the_objective_beside_tiny_times(instance: Instance) -> None:
    """Times from 1e-9 to 1e3 s in one instance: no more than rounding is lost."""
    solution = jackson.solve(instance)
    proof = certify(instance, solution)
    np.testing.assert_allclose(proof.bound, solution.objective, rtol=1e-12, atol=1e-12)


def test_a_time_too_short_to_move_the_clock_does_not_break_the_proof() -> None:
    """At 1e3 s a piece of 1e-14 s ends where it starts."""
    instance = instance_of([(0, 1e3, 1), (0, 1e-14, 1), (0, 1e-14, 0.5), (1e3, 1e-14, 1)])
    solution = jackson.solve(instance)
    np.testing.assert_allclose(certify(instance, solution).bound, solution.objective, rtol=1e-12)
