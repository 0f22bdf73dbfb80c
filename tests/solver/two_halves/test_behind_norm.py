"""Two halves with a norm between them: by hand, and against every partition and order."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.solver.cost_curve import CostCurve
from pace.solver.two_halves.behind_norm import (
    CONTRACT_BEYOND,
    best_all_gathers,
    best_reduce_scatters,
    chain_of_half,
    fewest_calls_under,
)
from pace.solver.two_halves.calls import Half
from tests.solver.two_halves.given_calls import end_of_reduce_scatters, longest_after_norm
from tests.strategies import eighths, properties, set_partitions

UNIT = CostCurve.affine(0.5, 1.0)


def test_reduce_scatters_by_hand() -> None:
    """Ready at 1, 2, 6, a byte each, half a second a call.

    The first two are sent by the time the third is there, together or not; it ends at 6 + 1.5. Together from
    2 to 4.5 it is one call less.
    """
    cuts, end = best_reduce_scatters(
        chain_of_half(np.array([1, 1, 1]), ready=np.array([1.0, 2.0, 6.0])), UNIT
    )
    assert end == 7.5
    assert cuts == [0, 2]


def test_gathers_by_hand() -> None:
    """Tails 1 and 4, a byte and four: the long tail's byte first, done at 1.5; both together would be at 5.5.

    Apart: max(1.5 + 4, 1.5 + 4.5 + 1) = 7. Together 5.5 + 4 = 9.5.
    """
    cuts, value = best_all_gathers(chain_of_half(np.array([4, 1]), tail=np.array([1.0, 4.0])), UNIT)
    assert (cuts, value) == ([0, 1], 7.0)


def test_nothing_to_send() -> None:
    """No gradients: no calls."""
    none = chain_of_half(np.zeros(0, dtype=np.int64))
    assert best_reduce_scatters(none, UNIT) == ([], 0.0)
    assert best_all_gathers(none, UNIT) == ([], 0.0)
    assert fewest_calls_under(none, UNIT, 1.0, most=1) == []


def test_many_gradients_and_a_cost_with_steps_give_a_plan() -> None:
    """Beyond the exact program's reach runs are put together first; every gradient is still in one run."""
    count = CONTRACT_BEYOND + 500
    tail, sizes = np.linspace(0, 10, count), np.full(count, 8)
    steps = CostCurve(sizes_bytes=(8.0, 1000.0, 2000.0), durations_s=(0.1, 0.2, 0.9), slope_beyond=0.001)
    cuts, value = best_all_gathers(chain_of_half(sizes, tail=tail), steps)
    assert cuts[0] == 0
    assert all(first < second < count for first, second in pairwise(cuts))
    groups = [list(range(first, second)) for first, second in pairwise([*cuts, count])]
    assert value == pytest.approx(longest_after_norm(Half.of(groups, tail, sizes), steps))
    single = Half.of([[number] for number in range(count)], tail, sizes)
    assert value < longest_after_norm(single, steps)


gradients = st.lists(st.tuples(eighths(3), eighths(3), st.integers(1, 12)), min_size=1, max_size=6)
affine_costs = st.builds(
    CostCurve.affine, st.sampled_from([0.0, 0.25, 1.0]), st.sampled_from([0.0, 0.125, 0.5])
)


def _in_order(durations: list[float], ready: list[float], tails: list[float]) -> float:
    now, worst = 0.0, 0.0
    for duration, release, tail in zip(durations, ready, tails, strict=True):
        now = max(now, release) + duration
        worst = max(worst, now + tail)
    return worst


@given(gradients, affine_costs)
@properties(30)
def test_no_partition_and_no_order_of_reduce_scatters_ends_earlier(
    drawn: list[tuple[float, float, int]], cost: CostCurve
) -> None:
    """All ways to put up to six gradients together; up to five calls in every order."""
    ready = np.array(sorted(r for r, _, _ in drawn))
    sizes = np.array([size for _, _, size in drawn], dtype=np.int64)
    _, end = best_reduce_scatters(chain_of_half(sizes, ready=ready), cost)
    least = np.inf
    for groups in set_partitions(range(len(ready))):
        calls = Half.of(groups, ready, sizes)
        least = min(least, end_of_reduce_scatters(calls, cost))
        if len(groups) > 4:
            continue
        durations = calls.durations(cost)
        for order in permutations(range(len(groups))):
            in_order = [float(durations[call]) for call in order]
            any_order = _in_order(in_order, [float(calls.times[call]) for call in order], [0.0] * len(order))
            assert any_order >= end_of_reduce_scatters(calls, cost) - 1e-9
    assert end == pytest.approx(least)


@given(gradients, affine_costs)
@properties(30)
def test_no_partition_and_no_order_of_gathers_is_faster(
    drawn: list[tuple[float, float, int]], cost: CostCurve
) -> None:
    """All ways to put up to six gradients together; up to four calls in every order."""
    tail = np.array(sorted(q for _, q, _ in drawn))
    sizes = np.array([size for _, _, size in drawn], dtype=np.int64)
    _, value = best_all_gathers(chain_of_half(sizes, tail=tail), cost)
    least = np.inf
    for groups in set_partitions(range(len(tail))):
        calls = Half.of(groups, tail, sizes)
        least = min(least, longest_after_norm(calls, cost))
        if len(groups) > 4:
            continue
        durations = calls.durations(cost)
        for order in permutations(range(len(groups))):
            in_order = [float(durations[call]) for call in order]
            tails = [float(calls.times[call]) for call in order]
            assert _in_order(in_order, [0.0] * len(order), tails) >= longest_after_norm(calls, cost) - 1e-9
    assert value == pytest.approx(least)


@given(gradients, affine_costs, st.integers(1, 20))
@properties(40)
def test_a_cap_is_kept(drawn: list[tuple[float, float, int]], cost: CostCurve, cap: int) -> None:
    """No run of more than one gradient is larger than the cap."""
    times = np.array(sorted(r for r, _, _ in drawn))
    sizes = np.array([size for _, _, size in drawn], dtype=np.int64)
    scattered, gathered = chain_of_half(sizes, ready=times), chain_of_half(sizes, tail=times)
    for cuts, _ in (
        best_reduce_scatters(scattered, cost, max_group_bytes=cap),
        best_all_gathers(gathered, cost, max_group_bytes=cap),
    ):
        for first, second in pairwise([*cuts, len(sizes)]):
            assert second - first == 1 or sizes[first:second].sum() <= cap
