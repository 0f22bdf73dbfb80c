"""Orders on two links: hand-worked tables, Johnson's theorem, and every order of small instances."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.solver.flow_shop.two_links import (
    TwoLinks,
    TwoLinkSolution,
    insertion_search,
    johnson_order,
    longest_tail_first,
    longest_tail_order,
    serve_in_order,
)
from pace.solver.kernels import two_links as kernel
from pace.solver.one_machine import one_link_bound
from tests.solver.flow_shop.theorems import (
    downlink_bound,
    first_in_first_out,
    fluid_optimum,
    is_proportional,
    pair_bound,
    partitioned_bound,
    strongest_bound,
    uplink_bound,
)
from tests.solver.flow_shop.two_links import drawn_links, optimum, three_layers, two_links
from tests.strategies import properties


@pytest.mark.parametrize(
    ("sizes", "forward_s", "expected"),
    [((1, 2, 3), 1.0, (13, 12, 11, 9)), ((1, 4, 8), 4.0, (34, 30, 27, 19))],
)
def test_three_layers_by_hand(
    sizes: tuple[int, int, int], forward_s: float, expected: tuple[float, float, float, float]
) -> None:
    """ByteScheduler's contrived example and a larger one: whole and in parts of 1 s, both orders."""
    whole = three_layers(sizes, 1.0, forward_s)
    parts = three_layers(sizes, 1.0, forward_s, part=1.0)
    found = (
        first_in_first_out(whole).objective,
        longest_tail_first(whole).objective,
        first_in_first_out(parts).objective,
        longest_tail_first(parts).objective,
    )
    assert found == expected
    proof = uplink_bound(parts)
    assert (proof.min_ready, proof.total_processing, proof.min_tail) == (1, sum(sizes), forward_s + 1)
    assert proof.bound == expected[-1]


def test_unequal_ratios_defeat_longest_tail_first() -> None:
    """A has the long push, B the long pull: longest tail first ends at 9 s, Johnson's order at 7 s."""
    instance = two_links([(0, 4, 1, 1), (0, 1, 4, 0)])
    assert longest_tail_first(instance).objective == 9
    assert johnson_order(instance.push, instance.pull).tolist() == [1, 0]
    assert insertion_search(instance).objective == 7 == optimum(instance)
    assert pair_bound(instance) == 6
    proof = uplink_bound(instance)
    assert (proof.min_ready, proof.total_processing, proof.min_tail, proof.bound) == (0, 5, 2, 7)


def test_the_pair_bound_sees_what_one_link_does_not() -> None:
    """Johnson's makespan is 1 + 2 + 2 s; either link alone proves 4 s."""
    instance = two_links([(0, 1, 1, 0), (0, 2, 2, 0)])
    one_link = max(uplink_bound(instance).bound, downlink_bound(instance).bound)
    assert one_link < pair_bound(instance) == 5 == optimum(instance)


def test_partition_bound_needs_ceil() -> None:
    """Three tensors of half a part take 4.5 s above the ideal; floor allows 3 s, ceil 6 s."""
    sizes = np.array([0.5, 0.5, 0.5])
    ideal = 1.5
    real = longest_tail_first(two_links([(0, 1.5, 1.5, 0)] * 3)).objective
    assert real == 6
    printed = ideal + np.floor(sizes / 1.0).sum() * 1.0 + 1.0 + 2 * 1.0 / 1.0
    # The printed form leaves out the parts that are smaller than a partition: all of these.
    assert printed < real
    assert partitioned_bound(ideal, sizes, 1.0, lost_s=1.0, bytes_per_s=1.0) >= real
    assert partitioned_bound(ideal, sizes, 1.0, lost_s=1.0, bytes_per_s=1.0) == 7.5


def _judge(instance: TwoLinks, solution: TwoLinkSolution) -> None:
    """Every job pushed once it is ready, pulled once it is pushed, one at a time on each link."""
    assert (solution.push_starts >= instance.ready).all()
    assert (solution.pull_starts >= solution.push_ends).all()
    for starts, ends in (
        (solution.push_starts, solution.push_ends),
        (solution.pull_starts, solution.pull_ends),
    ):
        order = np.lexsort((ends, starts))
        assert (starts[order][1:] >= ends[order][:-1]).all()
    expected = np.max(solution.pull_ends + instance.tail, initial=0.0)
    assert solution.objective == expected


@properties(100)
@given(instance=drawn_links(8))
def test_no_link_carries_two_and_no_bound_is_beaten(instance: TwoLinks) -> None:
    """Every order is feasible and beats no certificate; the search is never worse than its seeds."""
    by_tail, fifo, found = (
        longest_tail_first(instance),
        first_in_first_out(instance),
        insertion_search(instance),
    )
    bound = strongest_bound(instance)
    for solution in (by_tail, fifo, found):
        _judge(instance, solution)
        assert solution.objective >= bound
    assert found.objective <= by_tail.objective
    in_johnsons = serve_in_order(instance, johnson_order(instance.push, instance.pull))
    _judge(instance, in_johnsons)
    assert found.objective <= in_johnsons.objective
    assert fluid_optimum(instance) <= bound


@properties(40)
@given(instance=drawn_links(5, min_jobs=1))
def test_every_order_of_small_instances(instance: TwoLinks) -> None:
    """Bounds <= optimum <= every heuristic; insertion search comes within 12 %."""
    best = optimum(instance)
    assert strongest_bound(instance) <= best
    found = insertion_search(instance).objective
    assert best <= found <= 1.12 * best
    assert best <= longest_tail_first(instance).objective


def test_six_partitions_by_every_pair_of_orders() -> None:
    """Equal layered parts, all 720 x 720 orders: longest tail first stays close, the search closer."""
    random = np.random.default_rng(11)
    over = []
    for _ in range(4):
        ready = np.sort(random.random(6) * 3)
        tail = np.sort(random.random(6) * 3)
        instance = TwoLinks(ready=ready, push=np.ones(6), pull=np.ones(6), tail=tail)
        best = optimum(instance)
        assert strongest_bound(instance) <= best * (1 + 1e-12)
        over.append(longest_tail_first(instance).objective / best)
        assert 1 - 1e-12 <= insertion_search(instance).objective / best <= 1.02
    assert min(over) >= 1 - 1e-12
    assert max(over) <= 1.1
    assert np.mean(over) <= 1.04


@properties(40)
@given(instance=drawn_links(6))
def test_johnson_is_optimal_without_ready_times_and_tails(instance: TwoLinks) -> None:
    """Johnson 1954: no other order of both links ends sooner."""
    plain = TwoLinks(
        ready=np.zeros(len(instance)),
        push=instance.push,
        pull=instance.pull,
        tail=np.zeros(len(instance)),
    )
    order = johnson_order(plain.push, plain.pull)
    solution = serve_in_order(plain, order)
    assert solution.objective == pair_bound(plain)
    if len(plain) < 6:
        assert solution.objective == optimum(plain)


@properties(120)
@given(instance=drawn_links(10, ratio=st.just(1.0)))
def test_longest_tail_first_is_within_two_parts(instance: TwoLinks) -> None:
    """With pull = push: at most C* + 2 p_max, and so at most twice the optimum."""
    longest = float(instance.push.max(initial=0.0))
    assert longest_tail_first(instance).objective <= fluid_optimum(instance) + 2 * longest + 1e-12


@properties(50)
@given(instance=drawn_links(6, ratio=st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0])))
def test_small_parts_approach_the_fluid_optimum(instance: TwoLinks) -> None:
    """Proportional links: cut every job into 64 parts and longest tail first is within two parts' times."""
    assert is_proportional(instance)
    parts = TwoLinks(
        ready=np.repeat(instance.ready, 64),
        push=np.repeat(instance.push / 64, 64),
        pull=np.repeat(instance.pull / 64, 64),
        tail=np.repeat(instance.tail, 64),
    )
    slack = 2 * float(np.max(parts.push, initial=0.0)) + 2 * float(np.max(parts.pull, initial=0.0))
    fluid = fluid_optimum(instance)
    assert fluid - 1e-9 <= longest_tail_first(parts).objective <= fluid + slack + 1e-9


@properties(50)
@given(instance=drawn_links(8, ratio=st.just(1.0)))
def test_one_worker_in_the_limit_is_jacksons_schedule(instance: TwoLinks) -> None:
    """Pull as fast as push: the fluid optimum is the one-machine optimum."""
    assert fluid_optimum(instance) == one_link_bound(instance.ready, instance.push, instance.tail).bound


@properties(40)
@given(instance=drawn_links(7))
def test_moves_are_priced_as_they_are_served(instance: TwoLinks) -> None:
    """The compiled price of an order is the objective of serving it."""
    arrays = (instance.ready, instance.push, instance.pull, instance.tail)
    order = longest_tail_order(instance)
    assert kernel.objective_in_order(*arrays, order) == serve_in_order(instance, order).objective
    found = order.copy()
    value = kernel.reinsert(*arrays, found)
    assert sorted(found.tolist()) == list(range(len(instance)))
    assert value == serve_in_order(instance, found).objective <= serve_in_order(instance, order).objective


def test_ties_are_broken_the_same_way_everywhere() -> None:
    """Equal tails go by ready time, then by index."""
    instance = two_links([(1, 1, 1, 1), (0, 1, 1, 1), (0, 1, 1, 2)])
    assert longest_tail_order(instance).tolist() == [2, 1, 0]
    assert longest_tail_first(instance).push_order.tolist() == [2, 1, 0]
