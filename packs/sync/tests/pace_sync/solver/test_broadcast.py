"""The broadcast shop: hand-worked pauses, Johnson's theorem, every order of small instances, every cut."""

from itertools import permutations, product

import numpy as np
import pytest

from pace_sync.solver.broadcast import (
    NO_CREDIT,
    BroadcastShop,
    best_order,
    order_bound,
    pause_in_order,
    searched_order,
    times_in_order,
)
from pace_sync.solver.bucket_bounds import BytesOnLink, every_buckets_bound
from pace_sync.solver.bucket_sizes import ByteLine, best_cuts, cut_into, fill


def shop(
    link: list[float], work: list[list[float]], *, sizes: list[int] | None = None, credit: int = NO_CREDIT
) -> BroadcastShop:
    """Return a shop of these seconds without lags."""
    return BroadcastShop(
        link_s=np.array(link, dtype=np.float64),
        work_s=np.array(work, dtype=np.float64),
        size_bytes=np.array(sizes or [1] * len(link), dtype=np.int64),
        lag_s=np.zeros(len(work)),
        credit_bytes=credit,
    )


def drawn(random: np.random.Generator, *, receivers: int, limited: bool) -> BroadcastShop:
    """Return a shop of 2 to 6 buckets whose bytes are near their seconds on the link."""
    count = int(random.integers(2, 7))
    sizes = random.integers(1, 10, count)
    return BroadcastShop(
        link_s=sizes * random.uniform(0.5, 1.5, count),
        work_s=random.uniform(0, 12, (receivers, count)),
        size_bytes=sizes,
        lag_s=random.uniform(0, 2, receivers),
        credit_bytes=int(sizes.max() + random.integers(0, 12)) if limited else NO_CREDIT,
    )


def played(case: BroadcastShop, order: tuple[int, ...]) -> float:
    """Return the pause, in the plainest words: when may a bucket start, and when is it done."""
    done: list[tuple[float, int]] = []
    free = 0.0
    receivers = [0.0] * len(case.lag_s)
    for bucket in order:
        start = free
        size = int(case.size_bytes[bucket])
        for end, _ in [(0.0, 0), *done]:
            held = sum(bytes_ for until, bytes_ in done if until > max(end, free))
            if held + size <= case.credit_bytes:
                start = max(end, free)
                break
        free = start + case.link_s[bucket]
        for number, lag in enumerate(case.lag_s):
            receivers[number] = max(receivers[number], free + lag) + case.work_s[number, bucket]
        done.append((max(receivers), size))
    return max(receivers)


def test_by_hand() -> None:
    """Two buckets, the short one first; with a credit for one at a time, one after the other."""
    assert pause_in_order(shop([3, 1], [[1, 2]]), np.array([1, 0])) == 5
    assert pause_in_order(shop([3, 1], [[1, 2]]), np.array([0, 1])) == 6
    assert pause_in_order(shop([3, 1], [[1, 2]], sizes=[5, 5], credit=9), np.array([1, 0])) == 7
    times = times_in_order(shop([3, 1], [[1, 2]], sizes=[5, 5], credit=9), np.array([1, 0]))
    assert times.starts.tolist() == [0, 3]
    assert times.finished.tolist() == [[3, 7]]


@pytest.mark.parametrize("seed", range(60))
def test_johnsons_order_is_optimal_without_a_credit(seed: int) -> None:
    """One receiver: the order found has the bound's pause, which no order is below."""
    case = drawn(np.random.default_rng(seed), receivers=1, limited=False)
    order, method = best_order(case)
    optimum = min(played(case, each) for each in permutations(range(len(case))))
    assert method == "Johnson's order"
    assert pause_in_order(case, order) == pytest.approx(optimum, rel=1e-12)
    assert order_bound(case).bound_s == pytest.approx(optimum, rel=1e-12)


@pytest.mark.parametrize("seed", range(60))
def test_few_buckets_are_ordered_optimally(seed: int) -> None:
    """Several receivers and a credit: equal to the best of all orders, and not below the bound."""
    case = drawn(np.random.default_rng(seed), receivers=1 + seed % 3, limited=True)
    order, _ = best_order(case)
    optimum = min(played(case, each) for each in permutations(range(len(case))))
    assert pause_in_order(case, order) == pytest.approx(optimum, rel=1e-12)
    assert order_bound(case).bound_s <= optimum * (1 + 1e-12)


def test_search_is_near_the_optimum() -> None:
    """What is used for more buckets, on instances whose optimum is known: 1 % above it at most on average."""
    ratios = []
    for seed in range(80):
        case = drawn(np.random.default_rng(seed), receivers=2, limited=True)
        searched = pause_in_order(case, searched_order(case))
        ratios.append(searched / pause_in_order(case, best_order(case)[0]))
    assert min(ratios) >= 1 - 1e-12
    assert np.mean(ratios) <= 1.01


def line(
    random: np.random.Generator, *, sizes: list[int], receivers: int = 2, credit: int = NO_CREDIT
) -> tuple[ByteLine, BytesOnLink]:
    """Return tensors of few bytes as a line, and as what is to be sent."""
    rates = random.uniform(0, 2, (receivers, len(sizes)))
    size = np.array(sizes, dtype=np.int64)
    message, per_byte = float(random.uniform(0, 1)), float(random.uniform(0.2, 1.5))
    overhead, lag = random.uniform(0, 1, receivers), random.uniform(0, 1, receivers)
    costs = {
        "message_s": message,
        "seconds_per_byte": per_byte,
        "overhead_s": overhead,
        "lag_s": lag,
        "credit_bytes": credit,
    }
    return (
        ByteLine(
            ends=np.cumsum(size),
            block_bytes=np.ones(len(sizes), dtype=np.int64),
            worked_s=np.cumsum(rates * size, axis=1),
            **costs,  # type: ignore[arg-type]  # as named
        ),
        BytesOnLink(size_bytes=size.astype(np.float64), work_s_per_byte=rates, **costs),  # type: ignore[arg-type]
    )


def compositions(total: int) -> list[list[int]]:
    """Return every way to cut a line of bytes: the ends of buckets."""
    return [
        [place + 1 for place, cut in enumerate(cuts) if cut] + [total]
        for cuts in product([False, True], repeat=total - 1)
    ]


@pytest.mark.parametrize("seed", range(30))
def test_cuts_from_behind_are_optimal(seed: int) -> None:
    """For each number of buckets, against all cuts of nine bytes; then over all numbers."""
    random = np.random.default_rng(seed)
    tried, _ = line(random, sizes=[4, 2, 3])
    every = compositions(9)
    for count in (1, 2, 3, 5, 9):
        found = cut_into(tried, count, at_least_s=0.0, largest_bytes=9)
        assert found is not None
        optimum = min(tried.pause_s(np.array(cuts)) for cuts in every if len(cuts) == count)
        assert tried.pause_s(found) <= optimum * (1 + 1e-9)
    optimum = min(tried.pause_s(np.array(cuts)) for cuts in every)
    assert tried.pause_s(best_cuts(tried, at_least_s=0.0)) == pytest.approx(optimum, rel=1e-9)


@pytest.mark.parametrize("seed", range(30))
def test_cuts_under_a_credit(seed: int) -> None:
    """Every bucket fits, and the pause is at most 5 % above the best of all cuts of ten bytes."""
    random = np.random.default_rng(seed)
    credit = int(random.integers(2, 9))
    tried, _ = line(random, sizes=[4, 2, 4], credit=credit)
    optimum = min(tried.pause_s(np.array(cuts)) for cuts in compositions(10))
    found = best_cuts(tried, at_least_s=0.0)
    assert np.max(np.diff(found, prepend=0)) <= credit
    assert optimum * (1 - 1e-12) <= tried.pause_s(found) <= optimum * 1.05


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_no_buckets_in_any_order_beat_the_bound(seed: int, limited: bool) -> None:
    """Five bytes of two tensors into at most five buckets in every way, with and without a credit."""
    random = np.random.default_rng(seed)
    tried, sent = line(random, sizes=[3, 2], credit=int(random.integers(2, 5)) if limited else NO_CREDIT)
    least = np.inf
    tensor_of = [0, 0, 0, 1, 1]
    for places in product(range(5), repeat=5):
        used = sorted(set(places))
        if used != list(range(len(used))):
            continue
        sizes = np.bincount(places)
        if sizes.max() > tried.credit_bytes:
            continue
        work = np.tile(sent.overhead_s[:, None], len(used))
        for byte, place in enumerate(places):
            work[:, place] += sent.work_s_per_byte[:, tensor_of[byte]]
        case = BroadcastShop(
            link_s=np.asarray(sent.message_s + sizes * sent.seconds_per_byte, dtype=np.float64),
            work_s=work,
            size_bytes=sizes,
            lag_s=sent.lag_s,
            credit_bytes=tried.credit_bytes,
        )
        least = min(least, pause_in_order(case, np.arange(len(used))))
    bound = every_buckets_bound(sent, known_s=least)
    assert bound.bound_s <= least * (1 + 1e-12)
    assert bound.bound_s >= 0.6 * least


def test_geometric_buckets_reach_the_bound() -> None:
    """Potts and Baker: work half as slow as the link, 10^6 bytes, five buckets of ratio 2 and no messages."""
    sent = BytesOnLink(
        size_bytes=np.array([1e6]),
        work_s_per_byte=np.array([[0.5e-6]]),
        message_s=0.01,
        seconds_per_byte=1e-6,
        overhead_s=np.array([0.01]),
        lag_s=np.array([0.0]),
    )
    tried = ByteLine(
        ends=np.array([1_000_000]),
        block_bytes=np.array([1]),
        worked_s=np.array([[0.5]]),
        message_s=0.01,
        seconds_per_byte=1e-6,
        overhead_s=np.array([0.01]),
        lag_s=np.array([0.0]),
    )
    cuts = best_cuts(tried, at_least_s=0.0)
    pause = tried.pause_s(cuts)
    sizes = np.diff(cuts, prepend=0)
    assert sizes[1:] == pytest.approx(sizes[:-1] / 2, rel=1e-3)
    assert every_buckets_bound(sent, known_s=pause).bound_s >= pause * 0.999


def test_filled_buckets() -> None:
    """As many blocks as fit; a larger block alone."""
    ends, block = np.array([10, 16]), np.array([4, 6])
    assert fill(ends, block, 9).tolist() == [8, 16]
    assert fill(ends, block, 5).tolist() == [4, 8, 10, 16]
