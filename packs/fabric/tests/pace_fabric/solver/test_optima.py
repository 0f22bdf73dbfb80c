"""Searched and exact orders, and the bounds below them."""

from dataclasses import replace

import numpy as np
import pytest

from pace_fabric.solver.capacity import Capacities
from pace_fabric.solver.exact import solve_exactly
from pace_fabric.solver.lower_bounds import machine_bound, time_indexed_bound
from pace_fabric.solver.ordering import order_updates
from pace_fabric.solver.search import search_order
from pace_fabric.solver.updates import NO_DEADLINE, Updates
from tests.pace_fabric.solver.examples import E2, E3, star


def random_star(
    random: np.random.Generator, most: int, *, deadlines: bool = False
) -> tuple[Updates, Capacities]:
    """Return a batch of one update a host and constant links."""
    n = int(random.integers(2, most + 1))
    last = random.integers(1, 2 * n, n) if deadlines else np.full(n, NO_DEADLINE)
    updates = Updates(
        size=random.integers(50, 400, n).astype(float), host=np.arange(n), server=n, deadline=last
    )
    return updates, Capacities.constant([*random.choice([10, 25, 50, 100], n), 100], [100] * (n + 1))


def test_e3_has_an_optimum_that_greedy_misses() -> None:
    """g2 1.3333, g3 4, g1 5.99: 11.3233 instead of 14.98, by list search and by the exact program."""
    updates, capacities = star(E3)
    found = search_order(updates, capacities)
    assert found.commits == (1, 2, 0)
    assert found.commit_s.tolist() == pytest.approx([4 / 3, 4.0, 5.99])
    exact = solve_exactly(updates, capacities)
    assert exact.commits == (1, 2, 0)
    assert exact.total_s == pytest.approx(11.32333, abs=1e-4)
    carried = [((piece[:, 1] - piece[:, 0]) * piece[:, 2]).sum() for piece in exact.pieces]
    assert carried == pytest.approx([100, 100, 399], rel=1e-5)


def test_e3_has_a_bound() -> None:
    """The linear program over 120 slots in 10 seconds proves 10.886."""
    updates, capacities = star(E3)
    assert time_indexed_bound(updates, capacities, 10.0) == pytest.approx(10.886, abs=5e-4)
    assert machine_bound(updates, capacities) == pytest.approx(8.99)


def test_bound_exact_and_greedy_in_this_order() -> None:
    """No bound exceeds the optimum, no list beats it, and the searched list is within 1 % in the mean."""
    random = np.random.default_rng(3)
    over = []
    for _ in range(12):
        updates, capacities = random_star(random, 4)
        greedy = order_updates(updates, capacities)
        exact = solve_exactly(updates, capacities).total_s
        found = search_order(updates, capacities).commit_s.sum()
        horizon = float(greedy.commit_s[-1])
        for bound in (machine_bound(updates, capacities), time_indexed_bound(updates, capacities, horizon)):
            assert bound <= exact * (1 + 1e-6)
        assert exact <= found * (1 + 1e-6) <= greedy.commit_s.sum() * (1 + 1e-5)
        over.append(found / exact - 1)
    assert np.mean(over) <= 0.01


def test_the_exact_program_keeps_as_many_as_can_be() -> None:
    """With deadlines it keeps at least what the greedy order keeps, none of it late; so does the search."""
    random = np.random.default_rng(5)
    for _ in range(6):
        updates, capacities = random_star(random, 4, deadlines=True)
        exact, found = solve_exactly(updates, capacities), search_order(updates, capacities)
        assert len(found.commits) == len(exact.commits)
        assert found.commit_s.sum() <= 1.01 * exact.total_s
        assert all(rank <= updates.deadline[g] for rank, g in enumerate(found.commits, start=1))
        assert len(exact.commits) >= len(order_updates(updates, capacities).commits)
        assert all(rank <= updates.deadline[g] for rank, g in enumerate(exact.commits, start=1))


def test_more_capacity_never_worsens_the_optimum() -> None:
    """Doubling one link makes the exact optimum no later (greedy orders may become worse)."""
    random = np.random.default_rng(7)
    for _ in range(4):
        updates, capacities = random_star(random, 3)
        more = capacities.copy()
        more.rates[0] *= 2
        before, after = solve_exactly(updates, capacities), solve_exactly(updates, more)
        assert after.total_s <= before.total_s * (1 + 1e-6)


def test_local_search_beats_greedy_on_larger_batches() -> None:
    """Beyond what can be enumerated the search is better than greedy; with deadlines it keeps more."""
    random = np.random.default_rng(1)
    n = 12
    updates = Updates(
        size=random.integers(50, 400, n).astype(float),
        host=np.arange(n),
        server=n,
        deadline=random.integers(n // 2, 2 * n, n),
    )
    capacities = Capacities.constant([*random.choice([10, 25, 50, 100], n), 100], [100] * (n + 1))
    greedy = order_updates(updates, capacities)
    found = search_order(updates, capacities, most_tried=2000)
    assert len(greedy.commits) < len(found.commits) == n
    assert all(rank <= updates.deadline[g] for rank, g in enumerate(found.commits, start=1))
    free = replace(updates, deadline=np.full(n, NO_DEADLINE))
    better = search_order(free, capacities, most_tried=2000).commit_s.sum()
    assert better < order_updates(free, capacities).commit_s.sum()


def test_the_search_lets_the_fast_wait_for_the_urgent() -> None:
    """In E2 greedy drops g1, which g2 overtakes; g2 can wait for it from 1 s, or 2 s, to 10 s."""
    found = search_order(*star(E2))
    assert (found.commits, found.dropped) == ((0, 1), ())
    assert found.commit_s.tolist() == pytest.approx([10, 10])


def test_the_search_drops_what_has_no_position() -> None:
    """Of two that must be first the slow one goes, and the other is why; the third is not."""
    found = search_order(*star({"a": (100, 50, 1), "b": (100, 100, 1), "c": (10, 100, 5)}))
    assert found.commits == (1, 2)
    assert [(drop.update, drop.reason, drop.witness) for drop in found.dropped] == [(0, "infeasible", (1,))]


def test_the_exact_program_says_what_it_takes() -> None:
    """Changing links, too many updates and shared hosts are refused."""
    updates, capacities = star(E3)
    changing = Capacities.of_steps([[(0.0, 1.0), (1.0, 2.0)]] * len(capacities.counts))
    with pytest.raises(ValueError, match="do not change"):
        solve_exactly(updates, changing)
    shared = Updates(size=np.ones(2), host=np.zeros(2, dtype=int), server=1)
    with pytest.raises(ValueError, match="one update a host"):
        solve_exactly(shared, Capacities.constant([1, 1], [1, 1]))


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_the_exact_order_does_not_depend_on_the_unit_of_time(scale: float) -> None:
    """Tolerances of the solver are absolute."""
    updates, capacities = star(E3)
    faster = Capacities(capacities.times, capacities.rates / scale, capacities.counts)
    assert solve_exactly(updates, faster).total_s == pytest.approx(11.32333 * scale, rel=1e-5)


def test_the_exact_order_needs_no_link_for_what_is_at_the_server() -> None:
    """An update on the server's host is committed at once, and so is one without bytes."""
    updates = Updates(size=np.array([100.0, 0.0, 100.0]), host=np.array([2, 1, 0]), server=2)
    exact = solve_exactly(updates, Capacities.constant([100, 0, 100], [100, 100, 100]))
    assert exact.commit_s.tolist() == pytest.approx([0.0, 0.0, 1.0])
