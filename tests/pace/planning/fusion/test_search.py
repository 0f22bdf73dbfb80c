"""The fusion search against brute force over all ways to group gradients, and the bounds against both."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pace import Options, Profile
from pace.documents.collective_costs import SampledAllReduce
from pace.planning.fusion.bounds import chain_bound, fusion_bound
from pace.planning.fusion.problem import FusionProblem, Partition
from pace.planning.fusion.search import fuse
from tests.strategies import (
    affine,
    allreduces,
    eighths,
    layered,
    layered_profiles,
    profiles,
    properties,
    set_partitions,
    window,
)

AFFINE = st.builds(affine, eighths(1), st.sampled_from([0.0, 0.0625, 0.25]))


def value(problem: FusionProblem, partition: Partition) -> float:
    """Return the window of a partition under free preemption, by the oracle's dual."""
    buffers = problem.buffers(partition)
    return max(window(buffers.ready, problem.cost(buffers.sizes), buffers.tail), problem.compute_s)


def brute_force(problem: FusionProblem, max_group_bytes: int | None = None) -> float:
    """Return the least window over all partitions that keep dtypes apart and groups below the cap."""
    sent = [int(number) for number in np.flatnonzero(problem.sizes)]
    best = np.inf
    for groups in set_partitions(sent):
        if any(len({int(problem.dtypes[i]) for i in group}) > 1 for group in groups):
            continue
        if max_group_bytes is not None and any(
            len(group) > 1 and problem.sizes[group].sum() > max_group_bytes for group in groups
        ):
            continue
        best = min(best, value(problem, tuple(map(tuple, groups)) + problem.unsent()))
    return float(best)


def assert_is_partition(problem: FusionProblem, partition: Partition, max_group_bytes: int | None) -> None:
    """Every gradient once, dtypes apart, groups below the cap, and without bytes each by itself."""
    assert sorted(chain.from_iterable(partition)) == list(range(len(problem.sizes)))
    for group in partition:
        members = list(group)
        if len(members) > 1:
            assert len(set(problem.dtypes[members].tolist())) == 1
            assert problem.sizes[members].min() > 0
            assert max_group_bytes is None or problem.sizes[members].sum() <= max_group_bytes


@given(profiles(), st.sampled_from(["optimal", "paper", "none"]), st.sampled_from([None, 1, 16, 64]))
@properties(40)
def test_every_fusion_is_a_partition(profile: Profile, fusion: str, cap: int | None) -> None:
    """Whatever the search, all the partitions that it hands on are legal."""
    problem = FusionProblem.of(profile)
    options = Options.model_validate({"fusion": fusion, "max_group_bytes": cap, "search_calls": 100})
    for partition in fuse(problem, options).partitions:
        assert_is_partition(problem, partition, cap)


@given(layered_profiles(max_layers=6, cost=AFFINE))
@properties(40)
def test_on_layered_models_optimal_is_the_best_of_all_partitions(profile: Profile) -> None:
    """Affine cost: equal to brute force over every way to group, and said to be exact."""
    problem = FusionProblem.of(profile)
    found = fuse(problem, Options())
    assert found.method.endswith(("exact if preemption were free", "nothing to send, exact"))
    assert value(problem, found.partitions[0]) == brute_force(problem)


@pytest.mark.slow
@given(layered_profiles(max_layers=7, cost=AFFINE))
@properties(15)
def test_on_layered_models_of_seven_optimal_is_the_best_of_all_partitions(profile: Profile) -> None:
    """877 partitions of seven gradients."""
    problem = FusionProblem.of(profile)
    assert value(problem, fuse(problem, Options()).partitions[0]) == brute_force(problem)


@given(layered_profiles(max_layers=6, cost=AFFINE))
@properties(40)
def test_on_layered_models_the_chain_bound_is_the_optimum(profile: Profile) -> None:
    """The exact program and the bound meet: the gap of the ideal plan is zero."""
    problem = FusionProblem.of(profile)
    bound = max(chain_bound(problem).bound_s, problem.compute_s)
    assert bound == pytest.approx(max(brute_force(problem), 0.0), rel=1e-12)


@given(profiles(max_gradients=5, cost=allreduces()), st.sampled_from([None, None, 16]))
@properties(40)
def test_no_partition_beats_the_bounds_and_the_search_beats_no_optimum(
    profile: Profile, cap: int | None
) -> None:
    """Branches, dtypes and any cost: bounds <= optimum over all partitions <= what the search finds."""
    problem = FusionProblem.of(profile)
    best = brute_force(problem, cap)
    found = value(problem, fuse(problem, Options(max_group_bytes=cap, search_calls=300)).partitions[0])
    tolerance = 1e-9 * max(best, 1.0)
    assert fusion_bound(problem).bound_s <= best + tolerance
    assert chain_bound(problem).bound_s <= best + tolerance
    assert best <= found + tolerance


@given(profiles(max_gradients=5, cost=AFFINE))
@properties(40)
def test_with_branches_the_search_finds_the_optimum_of_small_profiles(profile: Profile) -> None:
    """A heuristic by name; with five gradients and the default budget it misses nothing."""
    problem = FusionProblem.of(profile)
    found = value(problem, fuse(problem, Options()).partitions[0])
    gap_allowed = 1 + 1e-3  # the search ends there
    assert found <= brute_force(problem) * gap_allowed + 1e-12


@given(profiles(max_gradients=6), st.sampled_from([0.25, 1.0]))
@properties(40)
def test_in_slots_the_first_partition_is_the_best_of_those_found(profile: Profile, slot_s: float) -> None:
    """What is best in continuous time may not be once all-reduces are rounded up."""
    from pace.planning.fusion.problem import oracle_instance
    from pace.solver import one_machine

    problem = FusionProblem.of(profile)
    found = fuse(problem, Options(slot_s=slot_s, search_calls=100))
    windows = [
        max(
            one_machine.solve(oracle_instance(problem.buffers(partition), problem.cost, slot_s)).objective
            * slot_s,
            problem.compute_s,
        )
        for partition in found.partitions
    ]
    assert windows[0] == min(windows)


@given(layered_profiles(max_layers=6, cost=AFFINE))
@properties(40)
def test_the_papers_search_is_no_better_than_the_exact_one(profile: Profile) -> None:
    """Algorithm 1 looks at one partition for each number of groups."""
    problem = FusionProblem.of(profile)
    exact = value(problem, fuse(problem, Options()).partitions[0])
    paper = value(problem, fuse(problem, Options(fusion="paper")).partitions[0])
    unfused = value(problem, fuse(problem, Options(fusion="none")).partitions[0])
    assert exact <= paper + 1e-9
    assert exact <= unfused + 1e-9


@given(layered_profiles(max_layers=7))
@properties(40)
def test_the_papers_search_takes_the_best_number_of_groups(profile: Profile) -> None:
    """Stopping early at too many calls changes nothing: every R is worth no less."""
    from pace.solver.partition import max_min_partitions, runs

    problem = FusionProblem.of(profile)
    classes = problem.classes()
    assume(len(classes) == 1)
    chosen = value(problem, fuse(problem, Options(fusion="paper")).partitions[0])
    for cuts in max_min_partitions(problem.sizes[classes[0]]):
        groups = tuple(tuple(classes[0][list(run)].tolist()) for run in runs(cuts, len(classes[0])))
        assert chosen <= value(problem, groups + problem.unsent()) + 1e-9


def test_exact_is_said_only_where_it_is() -> None:
    """Affine and uncapped: among all partitions. A cap or another cost: among contiguous ones."""
    line = layered([6, 6, 4, 4], allreduce=affine(1, 0.25))
    curve = layered([6, 6, 4, 4], allreduce=SampledAllReduce(samples=((10, 1), (11, 5))))

    def method(profile: Profile, **chosen: object) -> str:
        return fuse(FusionProblem.of(profile), Options.model_validate(chosen)).method

    exact = "dynamic program over contiguous groups, exact if preemption were free"
    assert method(line) == exact
    assert method(line, max_group_bytes=20) == exact
    assert method(line, max_group_bytes=10) == f"{exact} among those"
    assert method(curve) == f"{exact} among those"
    assert method(line, slot_s=1.0).endswith("in continuous time")
    assert method(line, framework="ddp").endswith("barrier, exact")
    assert method(line, framework="ddp", max_group_bytes=10).endswith("barrier, exact among runs")
    assert method(curve, framework="ddp").endswith("barrier, exact among runs")
    assert method(line, fusion="paper").endswith("heuristic")


def test_gradients_ready_together_are_chained_by_tail() -> None:
    """One op produces all three, listed in the wrong order: the model is layered all the same."""
    profile = layered([4, 4, 4], allreduce=affine(1, 0.25), backward_s=[1, 0, 0])
    turned = profile.replace(gradients=profile.gradients[::-1])
    for one in (profile, turned):
        assert "exact" in fuse(FusionProblem.of(one), Options()).method


def test_nothing_to_send() -> None:
    """No gradients, or none with bytes: no group that is sent, and no bound but compute."""
    for sizes in ([], [0, 0]):
        problem = FusionProblem.of(layered(sizes, allreduce=affine(1, 1)))
        for fusion in ("optimal", "paper", "none"):
            found = fuse(problem, Options.model_validate({"fusion": fusion}))
            assert found.partitions == (tuple((number,) for number in range(len(sizes))),)
        assert fusion_bound(problem).bound_s == chain_bound(problem).bound_s == 0


def test_one_gradient_is_one_group() -> None:
    """Ready at 1, 4 s to send, 1 s after it: 6 s, which both bounds prove."""
    problem = FusionProblem.of(layered([4], allreduce=affine(2, 0.5)))
    assert fuse(problem, Options()).partitions == (((0,),),)
    assert fusion_bound(problem).bound_s == chain_bound(problem).bound_s == 6


def test_a_bound_states_what_it_rests_on() -> None:
    """Two of three gradients after 2 s, 12 bytes at 1 s/byte and one latency: 2 + 1 + 12 + 2."""
    problem = FusionProblem.of(
        layered([1, 6, 6], allreduce=affine(1, 1), backward_s=[1, 1, 0], forward_s=[1, 1, 1])
    )
    bound = fusion_bound(problem)
    assert bound.num_gradients == 2
    assert (bound.min_ready_s, bound.total_bytes, bound.min_tail_s) == (2, 12, 2)
    assert bound.bound_s == 2 + 1 + 12 + 2


@given(profiles(max_gradients=6))
@properties(40)
def test_behind_a_barrier_no_gradient_has_a_shorter_tail_than_another(profile: Profile) -> None:
    """DDP and Horovod: the forward pass waits for the last all-reduce."""
    problem = FusionProblem.of(profile, barrier=True)
    assert np.all(problem.tail == FusionProblem.of(profile).tail.max(initial=0.0))
