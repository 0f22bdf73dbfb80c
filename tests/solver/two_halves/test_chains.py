"""Chains of a reduce-scatter and a gather: the oracle on independent jobs is the optimum of the chains."""

from functools import cache
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.solver import one_machine
from pace.solver.cost_curve import CostCurve
from pace.solver.one_machine import certify
from pace.solver.two_halves.calls import Half, dependencies
from pace.solver.two_halves.chains import chained_instance
from pace.solver.two_halves.sending import send_chained
from tests.strategies import properties, set_partitions

SECOND_A_BYTE = CostCurve.affine(0.0, 1.0)


def calls(
    ready: list[float], tail: list[float], sizes: list[int], first: list[list[int]], second: list[list[int]]
) -> tuple[Half, Half]:
    """Return both halves' calls."""
    of_size = np.array(sizes, dtype=np.int64)
    return Half.of(first, np.array(ready), of_size), Half.of(second, np.array(tail), of_size)


def test_two_gradients_by_hand() -> None:
    """g1 is ready at 1 and needed last (tail 1), g0 at 2 with tail 3; a byte each, a second each call.

    RS1 1-2, RS0 2-3, AG0 3-4, AG1 4-5: the window is max(4 + 3, 5 + 1) = 7. Heads and tails: AG1 from 2, AG0
    from 3, RS1 has tail 1 + 1, RS0 tail 1 + 3. RS0 alone proves it, by its tail: 2 + 1 + (1 + 3).
    """
    first, second = calls([1, 2], [1, 3], [1, 1], [[0], [1]], [[0], [1]])
    instance = chained_instance(first, second, reduce_scatter=SECOND_A_BYTE, all_gather=SECOND_A_BYTE)
    assert instance.ready.tolist() == [1, 2, 2, 3]
    assert instance.tail.tolist() == [2, 4, 1, 3]
    solution = one_machine.solve(instance)
    assert solution.objective == 7
    assert solution.jobs.tolist() == [0, 1, 3, 2]
    proof = certify(instance, solution)
    assert (proof.jobs, proof.bound) == ((1,), 7)


def test_halves_put_together_differently() -> None:
    """One reduce-scatter of both, two gathers: each gather needs it, and its tail is the longer one's.

    RS 2-4, AG0 4-5, AG1 5-6: max(5 + 3, 6 + 1) = 8.
    """
    first, second = calls([1, 2], [1, 3], [1, 1], [[0, 1]], [[0], [1]])
    assert dependencies(first, second).tolist() == [[0, 0], [0, 1]]
    instance = chained_instance(first, second, reduce_scatter=SECOND_A_BYTE, all_gather=SECOND_A_BYTE)
    assert instance.ready.tolist() == [2, 4, 4]
    assert instance.tail.tolist() == [4, 1, 3]
    assert one_machine.solve(instance).objective == 8


def shortest_by_search(first: Half, second: Half) -> float:
    """Return the shortest window of whole-second calls, by trying what to serve in every second."""
    pairs = dependencies(first, second).tolist()
    count = len(first)
    needs = [[i for i, j in pairs if j == number] for number in range(len(second))]
    lasting = [*first.sizes.tolist(), *second.sizes.tolist()]

    @cache
    def best(now: int, left: tuple[int, ...]) -> float:
        if not any(left):
            return 0.0
        able = [i for i in range(count) if left[i] and first.times[i] <= now]
        able += [
            count + j for j in range(len(second)) if left[count + j] and not any(left[i] for i in needs[j])
        ]
        if not able:
            return best(now + 1, left)
        least = np.inf
        for job in able:
            after = tuple(value - (at == job) for at, value in enumerate(left))
            ended = 0.0
            if job >= count and not after[job]:
                ended = now + 1 + float(second.times[job - count])
            least = min(least, max(ended, best(now + 1, after)))
        return least

    return best(0, tuple(lasting))


small = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 2)), min_size=1, max_size=3)


@given(small, st.randoms(use_true_random=False))
@properties(40)
def test_longest_tail_first_is_the_optimum_of_the_chains(
    drawn: list[tuple[int, int, int]], random: Random
) -> None:
    """Serving any call in every second is never faster, whatever the halves put together."""
    partitions = list(set_partitions(range(len(drawn))))
    first, second = calls(
        [float(r) for r, _, _ in drawn],
        [float(q) for _, q, _ in drawn],
        [size for _, _, size in drawn],
        random.choice(partitions),
        random.choice(partitions),
    )
    instance = chained_instance(first, second, reduce_scatter=SECOND_A_BYTE, all_gather=SECOND_A_BYTE)
    assert one_machine.solve(instance).objective == shortest_by_search(first, second)


@given(
    st.lists(st.tuples(st.floats(0, 4), st.floats(0, 4), st.integers(1, 40)), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
    st.sampled_from([0.0, 0.5, np.inf]),
    st.sampled_from([0.0, 0.3]),
)
@properties(40)
def test_what_is_sent_is_possible_and_no_faster_than_the_optimum(
    drawn: list[tuple[float, float, int]],
    random: Random,
    patience: float,
    latency: float,
) -> None:
    """One segment at a time, none early, every column once, gathers behind their reduce-scatters."""
    partitions = list(set_partitions(range(len(drawn))))
    first, second = calls(
        [r for r, _, _ in drawn],
        [q for _, q, _ in drawn],
        [size for _, _, size in drawn],
        random.choice(partitions),
        random.choice(partitions),
    )
    scatter, gather = CostCurve.affine(latency, 0.1), CostCurve.affine(latency / 2, 0.2)
    columns = np.concatenate([first.sizes, second.sizes])
    sent = send_chained(
        first,
        second,
        columns,
        np.ones(len(columns), dtype=np.int64),
        np.ones(len(columns), dtype=np.int64),
        reduce_scatter=scatter,
        all_gather=gather,
        patience_s=patience,
    )
    assert sent is not None
    assert np.all(sent.starts[1:] >= sent.ends[:-1])
    assert np.bincount(sent.calls, weights=sent.columns).tolist() == columns.tolist()
    count = len(first)
    ends = np.zeros(len(columns))
    np.maximum.at(ends, sent.calls, sent.ends)
    for call, start in zip(sent.calls.tolist(), sent.starts.tolist(), strict=True):
        if call < count:
            assert start >= first.times[call]
    for before, after in dependencies(first, second).tolist():
        assert sent.starts[sent.calls == count + after].min() >= ends[before]
    assert sent.objective == pytest.approx(np.max(ends[count:] + second.times))
    instance = chained_instance(first, second, reduce_scatter=scatter, all_gather=gather)
    assert sent.objective >= one_machine.solve(instance).objective - 1e-9
