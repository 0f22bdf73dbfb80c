"""Aggregation and its mirror image, distribution: the paper's figures, the closed form, and properties."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pace_fabric.solver.aggregation import (
    DENSE,
    AggregateSize,
    Aggregation,
    aggregate,
    fastest_hosts,
    in_order_of_arrival,
    split,
)
from pace_fabric.solver.capacity import Capacities
from pace_fabric.solver.distribution import distribute
from pace_fabric.solver.ordering import order_updates
from pace_fabric.solver.updates import Updates

CLOSED_FORM = [(4, 3), (10, 5), (15, 6), (21, 7), (30, 9)]


def uniform(num_updates: int, num_hosts: int) -> tuple[Updates, Capacities]:
    """Return unit updates of one host each, and unit links; the server comes next, then other hosts."""
    updates = Updates(size=np.ones(num_updates), host=np.arange(num_updates), server=num_updates)
    return updates, Capacities.constant(np.ones(num_hosts), np.ones(num_hosts))


def groups_of(plan: Aggregation | None) -> list[tuple[tuple[int, ...], float]]:
    """Return the commits of a plan that must be there."""
    assert plan is not None
    return [(group, round(at, 9)) for group, at in plan.groups]


def plainly(
    updates: Updates, capacities: Capacities, aggregators: list[int]
) -> tuple[float, float, int] | None:
    """Return the best (last, sum, direct) over every number of direct updates, written out plainly."""
    best = None
    order = range(len(updates))
    for direct in range(len(updates) + 1):
        here = capacities.copy()
        last, total, i = 0.0, 0.0, direct
        for g in order[:direct]:
            last = max(last, updates.reserve(g, here).end_s)
            total += last
        for j, middle in enumerate(aggregators):
            ready = 0.0
            members: list[float] = []
            while i < len(updates):
                source, size = int(updates.host[i]), float(updates.size[i])
                end = here.finish(source, middle, size, float(updates.ready[i]))
                if members and j < len(aggregators) - 1 and end > last + 1e-9:
                    break
                ready = max(ready, here.reserve(source, middle, size, float(updates.ready[i])).end_s)
                members.append(size)
                i += 1
            if members and ready < np.inf:
                last = max(last, here.reserve(middle, updates.server, max(members), ready).end_s)
                total += len(members) * last
            elif members:
                last = np.inf
        if i == len(updates) and last < np.inf:
            found = (last, total, direct)
            if (
                best is None
                or found[0] < best[0] - 1e-9
                or (found[0] <= best[0] + 1e-9 and found[1] < best[1] - 1e-9)
            ):
                best = (min(found[0], best[0]) if best else found[0], total, direct)
    return best


def test_figure_2() -> None:
    """Four updates and one aggregator: two go directly, two are added, and all is committed at 3, not 4."""
    updates, capacities = uniform(4, 6)
    assert groups_of(aggregate(updates, range(4), capacities)) == [((g,), g + 1.0) for g in range(4)]
    plan = aggregate(updates, range(4), capacities, [5])
    assert plan is not None
    assert plan.num_direct == 2
    assert groups_of(plan) == [((0,), 1.0), ((1,), 2.0), ((2, 3), 3.0)]
    assert plan.hops[-1].after == (2, 3)


def test_figure_6() -> None:
    """Eight updates over a slow and a fast aggregator: u6 at A would be too late, so B adds three."""
    updates, _ = uniform(8, 11)
    capacities = Capacities.constant(np.ones(11), [*np.ones(9), 1 / 1.2, 1])
    plan = aggregate(updates, range(8), capacities, [9, 10])
    assert groups_of(plan) == [((0,), 1.0), ((1,), 2.0), ((2,), 3.0), ((3, 4), 4.0), ((5, 6, 7), 5.0)]
    assert plan is not None
    to_server = [hop.reservation.pieces[0, :2].tolist() for hop in plan.hops if hop.source in (9, 10)]
    assert to_server == [[3.0, 4.0], [4.0, 5.0]]


@pytest.mark.parametrize(("num_updates", "slots"), CLOSED_FORM)
def test_uniform_networks_attain_the_closed_form(num_updates: int, slots: int) -> None:
    """About sqrt(2 N) transfers' time instead of N; no number of aggregators does better than the formula."""
    lasts = []
    for k in range(1, 9):
        updates, capacities = uniform(num_updates, num_updates + 1 + k)
        plan = aggregate(updates, range(num_updates), capacities, range(num_updates + 1, num_updates + 1 + k))
        assert plan is not None
        lasts.append(plan.last_s)
    assert min(lasts) == slots
    formula = min(
        t for t in range(1, num_updates + 1) for k in range(t)
        if num_updates <= (t - k) + sum(t - i for i in range(1, k + 1))
    )  # fmt: skip
    assert formula == slots


def test_an_aggregator_has_its_own_update_for_free() -> None:
    """Two updates, one at the aggregator: it receives one and sends one sum."""
    updates, capacities = uniform(2, 3)
    plan = aggregate(updates, [0, 1], capacities, [0])
    assert groups_of(plan) == [((0,), 1.0), ((1,), 2.0)]
    slow = Capacities.constant([1, 1, 1], [9, 9, 0.25])
    assert groups_of(aggregate(updates, [0, 1], slow, [0])) == [((0, 1), 5.0)]


def test_sizes_of_sums() -> None:
    """Dense sums are as large as one update, sparse ones at most as large as the model, exact ones twice."""
    assert AggregateSize().of([3.0, 2.0]) == 3.0
    assert AggregateSize(at_most_bytes=4.0).of([3.0, 2.0]) == 4.0
    assert AggregateSize(at_most_bytes=9.0).of([3.0, 2.0]) == 5.0
    assert AggregateSize(vectors=2).of([3.0, 2.0]) == 6.0
    assert AggregateSize(vectors=2).of([3.0]) == 3.0


def test_the_fastest_hosts_aggregate_or_random_ones() -> None:
    """Highest min(up, down) first; a seed gives the same random order each time."""
    capacities = Capacities.constant([1, 5, 3, 9], [9, 4, 3, 1])
    assert fastest_hosts(capacities, range(4), 2) == (1, 2)
    assert fastest_hosts(capacities, range(4), seed=3) == fastest_hosts(capacities, range(4), seed=3)


def test_unknown_hosts_are_refused() -> None:
    """A host that the network lacks is an error, not memory of somebody else."""
    updates, capacities = uniform(2, 3)
    with pytest.raises(ValueError, match="host 7"):
        aggregate(updates, [0, 1], capacities, [7])
    with pytest.raises(ValueError, match="host 2"):
        order_updates(updates, Capacities.constant([1, 1], [1, 1]))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_the_compiled_split_equals_the_plain_one(data: st.DataObject) -> None:
    """The best number of direct updates, its last commit and its sum are those of trying every one."""
    n = data.draw(st.integers(1, 7))
    rate = st.sampled_from([1.0, 1.5, 2.0, 4.0])
    hosts = n + 1
    links = [[(0.0, data.draw(rate)), (2.0, data.draw(rate))] for _ in range(2 * hosts)]
    capacities = Capacities.of_steps(links)
    updates = Updates(
        size=np.array([data.draw(st.sampled_from([1.0, 2.0, 2.5])) for _ in range(n)]),
        host=np.arange(n),
        server=n,
        ready=np.array([data.draw(st.sampled_from([0.0, 0.7])) for _ in range(n)]),
    )
    aggregators = data.draw(st.lists(st.integers(0, n - 1), unique=True, max_size=3))
    plan = aggregate(updates, range(n), capacities, aggregators)
    best = plainly(updates, capacities, aggregators)
    assert (plan is None) == (best is None)
    if plan is not None and best is not None:
        assert plan.last_s == pytest.approx(best[0])
        assert sum(len(group) * at for group, at in plan.groups) == pytest.approx(best[1])
        assert plan.num_direct == best[2]
        assert [g for group, _ in plan.groups for g in group] == list(range(n))
        assert all(a[1] <= b[1] for a, b in itertools.pairwise(plan.groups))


def test_figure_2_turned_round() -> None:
    """The server sends to A, which serves two workers while the server serves the other two: 3, not 4."""
    capacities = Capacities.constant(np.ones(6), np.ones(6))
    plan = distribute(capacities, 4, [0, 1, 2, 3], 1.0, [5])
    assert plan is not None
    planned = [(hop.source, hop.target, hop.reservation.start_s) for hop in plan.hops]
    assert planned == [(4, 5, 0.0), (5, 2, 1.0), (5, 3, 2.0), (4, 0, 1.0), (4, 1, 2.0)]
    assert plan.last_s == 3.0
    direct = distribute(capacities, 4, [0, 1, 2, 3], 1.0)
    assert direct is not None
    assert direct.last_s == 4.0


def test_receivers_that_relay_halve_the_time_for_eight() -> None:
    """Eight hosts that send on what they have received: 4 transfers' time instead of 8."""
    capacities = Capacities.constant(np.ones(9), np.ones(9))
    plan = distribute(capacities, 8, range(8), 1.0, range(8))
    assert plan is not None
    assert sorted(plan.arrival_s) == list(range(8))
    assert plan.last_s <= 4.0


def test_a_host_that_cannot_be_reached() -> None:
    """No plan, instead of one that never ends."""
    capacities = Capacities.constant([1, 1], [0, 1])
    assert distribute(capacities, 1, [0], 1.0) is None
    dead = Capacities.constant([0, 1], [1, 1])
    assert aggregate(Updates(size=np.ones(1), host=np.zeros(1, dtype=int), server=1), [0], dead) is None


def test_what_arrives_first_commits_first() -> None:
    """Two sums, the first over a slow uplink: the second waits for it only where a deadline says so."""
    slow, fast, server = 4, 5, 6
    capacities = Capacities.constant([1, 1, 1, 1, 0.25, 1, 1], [2] * 7)

    def planned(deadline: list[int]) -> Aggregation:
        updates = Updates(
            size=np.ones(4), host=np.arange(4), server=server, deadline=np.array(deadline, dtype=np.int64)
        )
        made = split(
            updates,
            np.arange(4),
            capacities.copy(),
            np.array([slow, fast]),
            server,
            0,
            np.array([2, 4]),
            DENSE,
            0.0,
        )
        assert made.groups == (((0, 1), 5.0), ((2, 3), 5.0))
        return in_order_of_arrival(made, updates)

    assert planned([9] * 4).groups == (((2, 3), 2.0), ((0, 1), 5.0))
    assert planned([9] * 4).mean_s == 3.5
    assert planned([9, 3, 9, 9]).groups == (((0, 1), 5.0), ((2, 3), 5.0))
    assert planned([3, 4, 9, 9]).order == (2, 3, 0, 1)


@given(
    st.integers(2, 9).flatmap(
        lambda count: st.tuples(
            st.lists(st.sampled_from([0.1, 0.3, 1.0, 2.0]), min_size=count + 3, max_size=count + 3),
            st.lists(st.integers(0, 4), min_size=count, max_size=count),
            st.integers(0, count),
            st.lists(st.integers(1, count), min_size=2, max_size=2),
        )
    )
)
def test_commits_in_the_order_of_arrival_are_never_later(
    drawn: tuple[list[float], list[int], int, list[int]],
) -> None:
    """Links of four rates, any groups: no mean grows, no update misses its position, hops stay."""
    rates, slack, num_direct, ends = drawn
    count = len(slack)
    updates = Updates(
        size=np.ones(count),
        host=np.arange(count),
        server=count + 2,
        deadline=np.arange(1, count + 1) + np.array(slack, dtype=np.int64),
    )
    capacities = Capacities.constant(rates, [2.0] * (count + 3))
    group_end = np.array([max(num_direct + 1, min(ends)), count])
    made = split(
        updates,
        np.arange(count),
        capacities,
        np.array([count, count + 1]),
        count + 2,
        num_direct,
        group_end,
        DENSE,
        0.0,
    )
    found = in_order_of_arrival(made, updates)
    assert found.mean_s <= made.mean_s
    assert found.last_s == made.last_s
    assert found.hops == made.hops
    place = np.argsort(found.order) + 1
    assert (place <= updates.deadline).all()
    assert all(before <= after for (_, before), (_, after) in itertools.pairwise(found.groups))
