"""Divergence: the bound from norms, and replication that keeps it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pace_fabric.solver import divergence
from pace_fabric.solver.aggregation import Aggregation, aggregate
from pace_fabric.solver.capacity import Capacities
from pace_fabric.solver.replication import LeadLimit, Replication, replicate
from pace_fabric.solver.updates import Updates

NORMS = np.array([3.0, 4.0])


def two_units() -> tuple[Updates, Capacities, Aggregation]:
    """Return two unit updates, unit links, and a replica (host 3) behind half of one."""
    capacities = Capacities.constant(np.ones(4), [1, 1, 1, 0.5])
    queue = Updates(size=np.ones(2), host=np.arange(2), server=2)
    plan = aggregate(queue, [0, 1], capacities)
    assert plan is not None
    return queue, capacities, plan


def replicated(most: float, **knobs: object) -> Replication:
    """Return the two units replicated within `most`."""
    queue, capacities, plan = two_units()
    limit = LeadLimit(most=most, gamma=0.5, history_norm=2.0)
    made = replicate(queue, NORMS, plan, 0, capacities, 3, limit, **knobs)  # type: ignore[arg-type]  # named ones
    assert made is not None
    return made


def test_bounds_by_hand() -> None:
    """Gamma 0.5, history 2, norms 3 and 4: a lead of two is 10, of one 6, of none 0."""
    limit = LeadLimit(most=0.0, gamma=0.5, history_norm=2.0)
    assert limit.lead([], [3.0, 4.0]) == 10.0
    assert limit.lead([3.0], [4.0]) == 6.0
    assert limit.lead([3.0, 4.0], []) == 0.0
    assert LeadLimit(kind="updates", most=0.0).lead([], [3.0, 4.0]) == 2.0


def test_coefficients_by_hand() -> None:
    """Gamma 0.9 and three updates: 2.439 for the history, 2.71, 1.9 and 1; in all 8.049."""
    of_history, of_updates = divergence.coefficients(3, 0.9)
    assert of_history == pytest.approx(2.439)
    assert of_updates == pytest.approx([2.71, 1.9, 1.0])
    assert divergence.bound([1.0] * 3, 1.0, 0.9) == pytest.approx(8.049)


def test_swapped_order_diverges() -> None:
    """Two orthogonal unit updates in the other order: 0.9 sqrt(2) apart."""
    u1, u2, still = np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.zeros(2)
    forward = divergence.apply(*divergence.apply(still, still, u1, 0.9), u2, 0.9)[0]
    backward = divergence.apply(*divergence.apply(still, still, u2, 0.9), u1, 0.9)[0]
    assert np.linalg.norm(forward - backward) == pytest.approx(0.9 * np.sqrt(2))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.floats(0, 0.99), st.integers(0, 2**32 - 1))
def test_the_bound_is_above_the_true_norm(num: int, gamma: float, seed: int) -> None:
    """For random vectors at least the true norm, for parallel ones equal to it."""
    random = np.random.default_rng(seed)
    for vectors in (random.normal(size=(num + 1, 3)), np.outer(random.uniform(0, 2, num + 1), np.ones(3))):
        model, history = np.zeros(3), vectors[0]
        for update in vectors[1:]:
            model, history = divergence.apply(model, history, update, gamma)
        norms = np.linalg.norm(vectors, axis=1)
        limit = divergence.bound(norms[1:].tolist(), float(norms[0]), gamma)
        assert np.linalg.norm(model) <= limit + 1e-9
    assert np.linalg.norm(model) == pytest.approx(limit)
    assert np.linalg.norm(history) == pytest.approx(
        divergence.history_bound(norms[1:].tolist(), float(norms[0]), gamma)
    )


@pytest.mark.parametrize("check", ["commit", "batch-end"])
@pytest.mark.parametrize(
    ("most", "second", "frozen", "bound"),
    [(12.0, [1.0, 2.0], [], 10.0), (8.0, [3.0, 4.0], [3.0], 6.0), (5.0, [4.0, 5.0], [3.0, 4.0], 0.0)],
)
def test_only_the_last_transfer_moves(
    check: str, most: float, second: list[float], frozen: list[float], bound: float
) -> None:
    """Div_max 12: all punted; 8: u2 moves to [3, 4); 5: to [4, 5)."""
    made = replicated(most, check=check)
    moved = [hop.reservation.pieces[0, :2].tolist() for hop in made.server.hops]
    assert moved == [[0.0, 1.0], second]
    assert [at for _, at in made.frozen_groups] == frozen
    assert sorted([*made.frozen_updates, *made.punted]) == [0, 1]
    assert made.bound == bound
    assert max(made.bounds) <= most


def test_a_full_buffer_forces_replication() -> None:
    """Though the bound would allow to punt both, a worker that may keep nothing does not have to."""
    assert replicated(12.0).punted == (0, 1)
    assert replicated(12.0, buffer_bytes=0.0).punted == ()


def test_a_replica_that_cannot_be_reached() -> None:
    """No plan, instead of a bound that is not kept."""
    queue, _, plan = two_units()
    dead = Capacities.constant(np.ones(4), [1, 1, 1, 0])
    assert replicate(queue, NORMS, plan, 0, dead, 3, LeadLimit(most=1.0)) is None


def test_what_cannot_reach_the_replica_is_punted() -> None:
    """A worker's link dies once the server has its update: the bound allows to wait, so the plan stands."""
    links = [[(0.0, 1.0)] for _ in range(8)]
    links[2] = [(0.0, 1.0), (2.0, 0.0)]
    capacities = Capacities.of_steps(links)
    queue = Updates(size=np.ones(2), host=np.array([0, 1]), server=2)
    plan = aggregate(queue, [0, 1], capacities)
    assert plan is not None
    limit = LeadLimit(kind="updates", most=2.0)
    longer = Capacities.of_steps([*links[:7], [(0.0, 0.25)]])
    made = replicate(queue, NORMS, plan, 0, longer, 3, limit)
    assert made is not None
    assert 1 in made.punted
    assert replicate(queue, NORMS, plan, 0, longer, 3, LeadLimit(kind="updates", most=0.0)) is None


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_commit_leads_by_too_much(data: st.DataObject) -> None:
    """At every commit the bound is kept, whatever rates and norms; and every update is in one place."""
    n = data.draw(st.integers(1, 5))
    rates = [data.draw(st.sampled_from([0.5, 1.0, 3.0])) for _ in range(2 * n + 4)]
    capacities = Capacities.constant(rates[: n + 2], rates[n + 2 :])
    queue = Updates(size=np.full(n, 1.0), host=np.arange(n), server=n)
    punted = data.draw(st.integers(0, n - 1))
    plan = aggregate(queue, range(punted, n), capacities, data.draw(st.sampled_from([[], [0]])))
    assert plan is not None
    norms = np.array([data.draw(st.sampled_from([0.5, 1.0, 2.0])) for _ in range(n)])
    limit = LeadLimit(most=data.draw(st.sampled_from([0.0, 1.0, 4.0])), gamma=0.5, history_norm=1.0)
    made = replicate(queue, norms, plan, punted, capacities, n + 1, limit)
    assert made is not None
    assert max(made.bounds) <= limit.most + 1e-9
    assert sorted([*made.frozen_updates, *made.punted]) == list(range(n))
    assert made.delay_s >= -1e-9
