"""The two ordering rules: examples solved by hand, and what holds for every batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pace_fabric.solver.capacity import Capacities
from pace_fabric.solver.ordering import Late, Ordering, Rule, order_updates
from pace_fabric.solver.plain_ordering import ShardedServers, first_to_end, order_plainly
from pace_fabric.solver.updates import NO_DEADLINE, Updates, deadlines
from tests.pace_fabric.solver.examples import E2, E3, E4, E5, E6, E7, E8, Batch, star

EXAMPLES = [
    (E2, "paper", {"g2": 1.0}, {"g1": "overtaken"}, []),
    (E2, "strict", {"g2": 1.0}, {"g1": "overtaken"}, []),
    (E3, "paper", {"g2": 1.0, "g1": 4.99, "g3": 8.99}, {}, []),
    (E3, "strict", {"g2": 1.0, "g1": 4.99, "g3": 8.99}, {}, []),
    (E4, "paper", {"c": 1.0, "a": 4.0, "b": 6.0}, {}, ["b"]),
    (E4, "strict", {"b": 2.0, "a": 5.0, "c": 6.0}, {}, []),
    (E5, "paper", {"a": 3.0, "c": 4.0, "b": 6.0}, {}, ["b"]),
    (E5, "strict", {"b": 2.0, "c": 3.0}, {"a": "infeasible"}, []),
    (E6, "paper", {"c": 2.0, "d": 2.5, "b": 3.5}, {"a": "overtaken"}, []),
    (E6, "strict", {"d": 0.5, "c": 2.5, "b": 3.5}, {"a": "overtaken"}, []),
    (E7, "paper", {"a": 1.0, "b": 3.0}, {}, ["a"]),
    (E7, "strict", {"b": 2.0}, {"a": "expired"}, []),
    (E8, "paper", {"c": 1.25, "a": 5.0}, {"b": "overtaken"}, ["a"]),
    (E8, "strict", {"c": 1.0, "b": 11.0}, {"a": "overtaken"}, []),
]


def one_server(updates: Updates, capacities: Capacities) -> ShardedServers:
    """Return updates of one shard each."""
    sizes = updates.size[:, None]
    return ShardedServers(sizes, updates.host, (updates.server,), capacities, updates.ready)


def late_ones(ordering: Ordering, updates: Updates) -> list[int]:
    """Return the updates that commit after their deadline."""
    return [g for rank, g in enumerate(ordering.commits, start=1) if rank > updates.deadline[g]]


@pytest.mark.parametrize(("batch", "rule", "ends", "dropped", "late"), EXAMPLES)
def test_examples(
    batch: Batch, rule: Rule, ends: dict[str, float], dropped: dict[str, str], late: list[str]
) -> None:
    """E2 to E8 end when they should, in the right order, with the right drops and late commits."""
    names = list(batch)
    updates, capacities = star(batch)
    ordering = order_updates(updates, capacities, rule=rule)
    assert [names[g] for g in ordering.commits] == list(ends)
    assert ordering.commit_s.tolist() == pytest.approx(list(ends.values()), abs=1e-9)
    assert {names[drop.update]: drop.reason for drop in ordering.dropped} == dropped
    assert [names[g] for g in late_ones(ordering, updates)] == late


def test_a_stepped_link_ends_a_transfer_where_its_area_does() -> None:
    """E1: 2, 6 and 4 MB/s carry 30 MB by second 7, and nothing is left until then."""
    capacities = Capacities.of_steps([[(0, 2e6), (2, 6e6), (5, 4e6)], [(0, 1e9)], [(0, 1e9)], [(0, 1e9)]])
    assert capacities.finish(0, 1, 30e6) == 7.0
    booked = capacities.reserve(0, 1, 30e6)
    assert booked.pieces.tolist() == [[0, 2, 2e6], [2, 5, 6e6], [5, 7, 4e6]]
    assert capacities.steps(0) == [(0.0, 0.0), (7.0, 4e6)]


def test_nothing_inside_a_host_and_never_over_a_dead_link() -> None:
    """A transfer inside a host or of nothing ends at once; one over a dead link never does."""
    capacities = Capacities.constant([0.0, 1.0], [1.0, 1.0])
    assert capacities.finish(0, 0, 5.0, 2.0) == 2.0
    assert capacities.finish(0, 1, 0.0, 2.0) == 2.0
    assert capacities.finish(0, 1, 1.0) == np.inf
    assert capacities.reserve(0, 1, 1.0).end_s == np.inf
    assert capacities.steps(3) == [(0.0, 1.0)]


def test_the_deadline_is_a_position_before_the_bound() -> None:
    """Version 100, bound 10, computed from 93: position 3 at the latest."""
    assert deadlines(np.array([93]), version=100, delay_bound=10).tolist() == [3]


def test_drops_name_their_witnesses() -> None:
    """Who wants the same positions, and who overtakes."""
    updates, capacities = star(E5)
    (drop,) = order_updates(updates, capacities).dropped
    assert (drop.update, drop.reason, drop.witness) == (0, "infeasible", (1,))
    updates, capacities = star(E2)
    (drop,) = order_updates(updates, capacities).dropped
    assert (drop.update, drop.reason, drop.witness) == (0, "overtaken", (1,))


def test_the_witness_of_too_many_includes_what_is_picked() -> None:
    """Two are due by position 2 and picked first; of the two due by 3 one is too many, against all others."""
    batch: Batch = {"a": (10, 100, 2), "b": (20, 100, 2), "c": (30, 100, 3), "d": (40, 100, 3)}
    updates, capacities = star(batch)
    (drop,) = order_updates(updates, capacities).dropped
    assert (drop.update, drop.reason, drop.witness) == (3, "infeasible", (0, 1, 2))


def test_late_hold_keeps_what_strict_drops() -> None:
    """E2 held: the slow update commits first, and the server holds the fast one until then."""
    updates, capacities = star(E2)
    ordering = order_updates(updates, capacities, late="hold")
    assert ordering.commits == (0, 1)
    assert ordering.commit_s.tolist() == [10.0, 10.0]
    assert ordering.dropped == ()


def test_late_downweight_commits_late_with_less() -> None:
    """E2 downweighted: the slow update commits second, one position late."""
    updates, capacities = star(E2)
    ordering = order_updates(updates, capacities, late="downweight")
    assert ordering.commits == (1, 0)
    assert ordering.weights.tolist() == [1 / np.sqrt(2), 1.0]


def test_several_servers() -> None:
    """The least of the latest shards goes first: g1 at 0.6 and 1.0, then g2 at 0.8 and 2.2."""
    capacities = Capacities.constant([100] * 4, [100] * 4)
    sizes = np.array([[60.0, 40.0], [20.0, 180.0]])
    servers = ShardedServers(sizes, np.array([0, 1]), (2, 3), capacities, np.zeros(2))
    assert [servers.finish(0), servers.finish(1)] == pytest.approx([1.0, 2.0])
    booked = [[shard.end_s for shard in servers.shards(g, servers.capacities)] for g in (0, 1)]
    assert np.ravel(booked) == pytest.approx([0.6, 1.0, 0.8, 2.2])
    fresh = ShardedServers(
        sizes, np.array([0, 1]), (2, 3), Capacities.constant([100] * 4, [100] * 4), np.zeros(2)
    )
    assert order_plainly(fresh, np.full(2, NO_DEADLINE)).commits == (0, 1)


@st.composite
def batches(draw: st.DrawFn, most: int = 8) -> tuple[Updates, Capacities]:
    """Draw a batch on hosts whose links change, ties included."""
    n = draw(st.integers(1, most))
    hosts = draw(st.integers(1, n))
    rate = st.sampled_from([0.0, 1.0, 2.5, 4.0, 10.0])

    def steps() -> list[tuple[float, float]]:
        starts = sorted(draw(st.sets(st.sampled_from([1.0, 2.5, 4.0]), max_size=2)))
        return [(start, draw(rate)) for start in (0.0, *starts)]

    capacities = Capacities.of_steps([steps() for _ in range(2 * (hosts + 1))])
    updates = Updates(
        size=np.array(draw(st.lists(st.sampled_from([0.0, 1.0, 3.0, 7.5]), min_size=n, max_size=n))),
        host=np.array(draw(st.lists(st.integers(0, hosts - 1), min_size=n, max_size=n))),
        server=hosts,
        deadline=np.array(
            draw(st.lists(st.integers(0, 2 * n) | st.just(NO_DEADLINE), min_size=n, max_size=n))
        ),
        ready=np.array(draw(st.lists(st.sampled_from([0.0, 0.5, 3.0]), min_size=n, max_size=n))),
    )
    return updates, capacities


@settings(max_examples=60, deadline=None)
@given(batches(), st.sampled_from(["drop", "hold", "downweight"]))
def test_the_compiled_rule_equals_the_plain_one(batch: tuple[Updates, Capacities], late: Late) -> None:
    """Lower bounds change how many ends are computed, and nothing else."""
    updates, capacities = batch
    fast = order_updates(updates, capacities, late=late)
    plain = order_plainly(one_server(updates, capacities), updates.deadline, late=late)
    assert fast.picked == plain.picked
    assert fast.commits == plain.commits
    assert fast.dropped == plain.dropped
    np.testing.assert_array_equal(fast.end_s, plain.end_s)
    np.testing.assert_array_equal(fast.weights, plain.weights)


@settings(max_examples=60, deadline=None)
@given(batches(), st.sampled_from(["drop", "hold"]))
def test_no_kept_update_is_late(batch: tuple[Updates, Capacities], late: Late) -> None:
    """Commit ranks stay within deadlines, commits rise, and every update is kept or dropped once."""
    updates, capacities = batch
    ordering = order_updates(updates, capacities, late=late)
    assert late_ones(ordering, updates) == []
    assert sorted([*ordering.commits, *(drop.update for drop in ordering.dropped)]) == list(
        range(len(updates))
    )
    assert sorted(ordering.picked) == sorted(ordering.commits)
    assert (np.diff(ordering.commit_s) >= 0).all()


@settings(max_examples=60, deadline=None)
@given(batches())
def test_without_deadlines_nothing_is_overtaken(batch: tuple[Updates, Capacities]) -> None:
    """Where no pick is forced, updates end in the order in which they were picked, and all are kept."""
    updates, capacities = batch
    free = Updates(size=updates.size, host=updates.host, server=updates.server, ready=updates.ready)
    ordering = order_updates(free, capacities)
    assert {drop.reason for drop in ordering.dropped} <= {"undeliverable"}
    assert ordering.commits == ordering.picked


@settings(max_examples=60, deadline=None)
@given(batches())
def test_bookings_carry_the_bytes_and_never_exceed_a_link(batch: tuple[Updates, Capacities]) -> None:
    """Pieces of each transfer add up to its size; what is booked and what is left add up to the link."""
    updates, capacities = batch
    left = capacities.copy()
    booked = [updates.reserve(g, left) for g in range(len(updates))]
    moments = np.unique([0.0, *(t for b in booked for t in b.pieces[:, :2].ravel()), 1.0, 2.5, 4.0])
    for g, booking in enumerate(booked):
        if booking.end_s < np.inf and len(booking.pieces):
            carried = ((booking.pieces[:, 1] - booking.pieces[:, 0]) * booking.pieces[:, 2]).sum()
            assert carried == pytest.approx(updates.size[g])
    for at in (moments[:-1] + moments[1:]) / 2:
        used = np.zeros(len(capacities.counts))
        for g, booking in enumerate(booked):
            for start, end, rate in booking.pieces:
                if start <= at < end:
                    used[[2 * updates.host[g], 2 * updates.server + 1]] += rate
        for link in range(len(used)):
            assert used[link] + left.rate_at(link, at) == pytest.approx(capacities.rate_at(link, at))


def test_ties_go_to_batch_order() -> None:
    """Equal ends: the first of the batch."""
    updates, capacities = star({"x": (10, 10, None), "y": (10, 10, None)}, down=10)
    assert first_to_end(one_server(updates, capacities), [0, 1]) == 0
    assert order_updates(updates, capacities).commits == (0, 1)


def test_the_paper_breaks_bounds_where_the_strict_rule_does_not() -> None:
    """On 300 random batches the paper's rule commits late in 130 of them, the strict one never."""
    random = np.random.default_rng(0)
    broken = {"paper": 0, "strict": 0}
    for _ in range(300):
        n = int(random.integers(2, 7))
        updates = Updates(
            size=random.integers(50, 400, n).astype(float),
            host=np.arange(n),
            server=n,
            deadline=random.integers(0, 2 * n + 1, n),
        )
        capacities = Capacities.constant([*random.choice([10, 20, 50, 100], n), 100], [100] * (n + 1))
        for rule in ("paper", "strict"):
            ordering = order_updates(updates, capacities, rule=rule)
            broken[rule] += bool(late_ones(ordering, updates))
    assert broken == {"paper": 130, "strict": 0}
