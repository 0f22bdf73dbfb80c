"""Partitions of a chain against brute force: over all runs, and over all set partitions."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pace.solver import one_machine
from pace.solver.cost_curve import CostCurve
from pace.solver.partition import Chain, best_fifo, best_layered, fewest_runs, max_min_partitions, runs
from tests.strategies import eighths, exactly, properties, set_partitions, window

AFFINE = st.builds(CostCurve.affine, eighths(2), st.sampled_from([0.0, 0.125, 1.0]))


@st.composite
def curves(draw: st.DrawFn) -> CostCurve:
    """Draw a monotone piecewise-linear cost: concave, convex or with steps."""
    steps = draw(st.lists(st.tuples(st.integers(1, 12), eighths(2)), min_size=1, max_size=5))
    sizes, durations = np.cumsum([step for step, _ in steps]), np.cumsum([rise for _, rise in steps])
    return CostCurve(
        sizes_bytes=tuple(sizes.astype(float).tolist()),
        durations_s=tuple(durations.tolist()),
        slope_beyond=draw(st.sampled_from([0.0, 0.125, 0.5])),
    )


def chain_of(ready: list[float], tail: list[float], sizes: list[int]) -> Chain:
    """Return a chain of these gradients."""
    return Chain(ready=np.array(ready), tail=np.array(tail), sizes=np.array(sizes, dtype=np.int64))


@st.composite
def layered_chains(draw: st.DrawFn, max_elements: int = 7) -> Chain:
    """Draw a chain on which tails do not decrease; equal ready times and tails are frequent."""
    n = draw(st.integers(1, max_elements))
    return chain_of(
        sorted(draw(exactly(n, eighths(3)))),
        sorted(draw(exactly(n, eighths(3)))),
        draw(exactly(n, st.integers(1, 12))),
    )


def all_cuts(n: int) -> Iterator[list[int]]:
    """Yield the first elements of every partition of a chain into runs."""
    for number in range(n):
        for inner in combinations(range(1, n), number):
            yield [0, *inner]


def fits(sizes: list[int], max_group_bytes: int | None) -> bool:
    """Whether gradients of these sizes may share a group."""
    return max_group_bytes is None or len(sizes) == 1 or sum(sizes) <= max_group_bytes


def best_of_all_runs(chain: Chain, cost: CostCurve, max_group_bytes: int | None) -> float:
    """Price every contiguous partition with the oracle's dual."""
    sizes = chain.sizes.tolist()
    return min(
        price(chain, [list(run) for run in runs(cuts, len(chain))], cost)
        for cuts in all_cuts(len(chain))
        if all(fits(sizes[run.start : run.stop], max_group_bytes) for run in runs(cuts, len(chain)))
    )


def best_of_all_sets(chain: Chain, cost: CostCurve, max_group_bytes: int | None) -> float:
    """Price every partition at all, contiguous or not."""
    sizes = chain.sizes.tolist()
    return min(
        price(chain, groups, cost)
        for groups in set_partitions(range(len(chain)))
        if all(fits([sizes[i] for i in group], max_group_bytes) for group in groups)
    )


def price(chain: Chain, groups: list[list[int]], cost: CostCurve) -> float:
    """Return the least window of these groups under free preemption."""
    return window(
        np.array([chain.ready[group].max() for group in groups]),
        cost([chain.sizes[group].sum() for group in groups]),
        np.array([chain.tail[group].max() for group in groups]),
    )


def test_two_layers_are_fused_when_the_latency_is_worth_more_than_the_wait() -> None:
    """Ready at 1 and 2 s, tails 1 and 2 s, 4 bytes each at 1 s/byte.

    Apart with latency 3: the first is sent from 1, preempted from 2 to 9, done at 1 + 14: 15 + 1 = 16; the
    set of both proves 1 + 14 + 1. Together: 2 + 11 + 2 = 15. With latency 0: apart 10, together 12.
    """
    chain = chain_of([1, 2], [1, 2], [4, 4])
    assert best_layered(chain, CostCurve.affine(3, 1), enough=0) == ([0], 15)
    assert best_layered(chain, CostCurve.affine(0, 1), enough=0) == ([0, 1], 10)


def test_a_cap_keeps_groups_apart_but_not_a_large_gradient_out() -> None:
    """A gradient larger than the cap is a group of its own."""
    chain = chain_of([0, 0, 0], [0, 0, 0], [2, 2, 9])
    cuts, _ = best_layered(chain, CostCurve.affine(1, 1), enough=0, max_group_bytes=4)
    assert cuts == [0, 2]


def test_enough_is_not_beaten_at_the_price_of_more_groups() -> None:
    """Under a window that compute alone makes long, one group will do."""
    chain = chain_of([1, 2], [1, 2], [4, 4])
    assert best_layered(chain, CostCurve.affine(0, 1), enough=100)[0] == [0]


@given(layered_chains(), AFFINE)
@properties(40)
def test_with_an_affine_cost_no_fusion_at_all_is_better(chain: Chain, cost: CostCurve) -> None:
    """On a layered chain a contiguous partition is best among all set partitions."""
    cuts, objective = best_layered(chain, cost, enough=0)
    assert objective == best_of_all_sets(chain, cost, None)
    assert objective == one_machine.solve(chain.fuse(cuts, cost)).objective


@given(layered_chains(max_elements=8), AFFINE, st.sampled_from([None, 1, 8, 16]))
@properties(40)
def test_with_an_affine_cost_and_a_cap_no_contiguous_fusion_is_better(
    chain: Chain, cost: CostCurve, max_group_bytes: int | None
) -> None:
    """Exact over runs, cap respected. Over all sets a cap is bin packing: see the two tests below."""
    cuts, objective = best_layered(chain, cost, enough=0, max_group_bytes=max_group_bytes)
    assert objective == best_of_all_runs(chain, cost, max_group_bytes)
    sizes = chain.sizes.tolist()
    assert all(fits(sizes[run.start : run.stop], max_group_bytes) for run in runs(cuts, len(chain)))


@given(layered_chains(max_elements=8), curves(), st.sampled_from([None, None, 1, 8, 16]))
@properties(40)
def test_with_any_monotone_cost_no_contiguous_fusion_is_better(
    chain: Chain, cost: CostCurve, max_group_bytes: int | None
) -> None:
    """The bisection over the maximum finds the optimum over runs, for concave, convex and stepped g."""
    cuts, objective = best_layered(chain, cost, enough=0, max_group_bytes=max_group_bytes)
    assert objective == pytest.approx(best_of_all_runs(chain, cost, max_group_bytes), rel=1e-9)
    assert objective == pytest.approx(one_machine.solve(chain.fuse(cuts, cost)).objective, rel=1e-9)


def test_under_a_cap_runs_are_not_the_best_of_all_sets() -> None:
    """Bin packing: 6 + 4 and 6 + 4 fill two groups of 10; runs of 6, 6, 4, 4 need three."""
    chain = chain_of([0] * 4, [0] * 4, [6, 6, 4, 4])
    cost = CostCurve.affine(1, 0)
    assert best_layered(chain, cost, enough=0, max_group_bytes=10)[1] == 3
    assert best_of_all_sets(chain, cost, 10) == 2


def test_with_a_stepped_cost_runs_are_not_the_best_of_all_sets() -> None:
    """The same without a cap, where a call of more than 10 bytes costs 5 times as much."""
    chain = chain_of([0] * 4, [0] * 4, [6, 6, 4, 4])
    cost = CostCurve(sizes_bytes=(10.0, 11.0), durations_s=(1.0, 5.0), slope_beyond=1.0)
    assert best_layered(chain, cost, enough=0)[1] == pytest.approx(3)
    assert best_of_all_sets(chain, cost, None) == 2


@given(layered_chains(), st.one_of(AFFINE, curves()))
@properties(40)
def test_more_bytes_or_a_later_gradient_is_never_faster(chain: Chain, cost: CostCurve) -> None:
    """One more gradient at the end, needed first: the optimum does not fall."""
    longer = Chain(
        ready=np.append(chain.ready, chain.ready[-1]),
        tail=np.append(chain.tail, chain.tail[-1]),
        sizes=np.append(chain.sizes, 3),
    )
    before = best_layered(chain, cost, enough=0)[1]
    assert best_layered(longer, cost, enough=0)[1] >= before * (1 - 1e-9)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=9))
@example([1])
@example([5, 5, 5, 5])
@properties(40)
def test_the_smallest_group_is_as_large_as_possible_for_every_number_of_groups(sizes: list[int]) -> None:
    """Algorithm 1's MaxMinSize against every way to cut the chain into R runs."""
    n = len(sizes)
    array = np.array(sizes, dtype=np.int64)

    def smallest(cuts: list[int]) -> int:
        return min(sum(sizes[run.start : run.stop]) for run in runs(cuts, n))

    found = list(max_min_partitions(array))
    assert [len(cuts) for cuts in found] == list(range(1, n + 1))
    for cuts in found:
        best = max(smallest([0, *inner]) for inner in combinations(range(1, n), len(cuts) - 1))
        assert smallest(cuts) == best


def test_runs_cover_the_chain() -> None:
    """Each run begins at its cut and ends where the next begins."""
    assert runs([0, 2, 3], 5) == [range(2), range(2, 3), range(3, 5)]


def first_in_first_out(chain: Chain, cuts: list[int], cost: CostCurve) -> float:
    """Return when the last of these runs has been sent, each after the one before it."""
    now = 0.0
    for run in runs(cuts, len(chain)):
        now = max(now, float(chain.ready[run.stop - 1])) + float(cost(chain.sizes[list(run)].sum()))
    return now


@given(layered_chains(max_elements=9), st.one_of(AFFINE, curves()), st.sampled_from([None, None, 1, 8, 16]))
@properties(40)
def test_before_a_barrier_no_runs_end_earlier(
    chain: Chain, cost: CostCurve, max_group_bytes: int | None
) -> None:
    """The program over prefixes against every contiguous partition, sent first in, first out."""
    sizes = chain.sizes.tolist()
    cuts, end = best_fifo(chain, cost, max_group_bytes=max_group_bytes)
    allowed = [
        trial
        for trial in all_cuts(len(chain))
        if all(fits(sizes[run.start : run.stop], max_group_bytes) for run in runs(trial, len(chain)))
    ]
    assert cuts in allowed
    assert end == pytest.approx(first_in_first_out(chain, cuts, cost), rel=1e-12)
    assert end == pytest.approx(min(first_in_first_out(chain, trial, cost) for trial in allowed), rel=1e-12)


@given(
    layered_chains(max_elements=9),
    st.one_of(AFFINE, curves()),
    st.sampled_from([None, None, 8]),
    st.sampled_from([1.0, 1.1, 2.0]),
)
@properties(60)
def test_no_fewer_runs_keep_a_limit(
    chain: Chain, cost: CostCurve, max_group_bytes: int | None, slack: float
) -> None:
    """Against every contiguous partition, at the least objective and above it; below it there is none."""
    sizes = chain.sizes.tolist()
    reached = {
        tuple(trial): price(chain, [list(run) for run in runs(trial, len(chain))], cost)
        for trial in all_cuts(len(chain))
        if all(fits(sizes[run.start : run.stop], max_group_bytes) for run in runs(trial, len(chain)))
    }
    least = min(reached.values())
    limit = least * slack * (1 + 1e-9)
    cuts = fewest_runs(chain, cost, limit, most=len(chain), max_group_bytes=max_group_bytes)
    assert cuts is not None
    assert reached[tuple(cuts)] <= limit * (1 + 1e-9)
    fewest = min(len(trial) for trial, value in reached.items() if value <= limit)
    assert len(cuts) == fewest
    assert fewest_runs(chain, cost, limit, most=fewest - 1, max_group_bytes=max_group_bytes) is None
    if least > 0:
        assert (
            fewest_runs(chain, cost, least * 0.99, most=len(chain), max_group_bytes=max_group_bytes) is None
        )


@given(layered_chains(max_elements=9), st.integers(1, 12))
@properties(40)
def test_a_contracted_chain_holds_the_same_bytes(chain: Chain, num_elements: int) -> None:
    """Neighbors put together: no more elements than asked for, nothing lost, still layered."""
    coarse, starts = chain.contracted(num_elements)
    assert len(coarse) <= max(num_elements, 1)
    assert starts[0] == 0
    assert coarse.sizes.sum() == chain.sizes.sum()
    assert coarse.is_layered
    for run, size in zip(runs(starts.tolist(), len(chain)), coarse.sizes, strict=True):
        assert chain.sizes[list(run)].sum() == size
