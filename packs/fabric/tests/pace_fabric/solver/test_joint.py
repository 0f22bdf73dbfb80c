"""Order and aggregators chosen together by one program."""

import numpy as np
import pytest

from pace_fabric.solver.aggregation import aggregate
from pace_fabric.solver.capacity import Capacities
from pace_fabric.solver.exact import solve_exactly
from pace_fabric.solver.joint import solve_jointly
from pace_fabric.solver.ordering import order_updates
from pace_fabric.solver.updates import Updates


def unit_batch(count: int, **fields: object) -> Updates:
    """Return updates of size 1 on hosts of their own."""
    return Updates(size=np.ones(count), host=np.arange(count), server=count, **fields)  # type: ignore[arg-type]


def test_the_papers_figure_2() -> None:
    """Two directly, two over the aggregator while those arrive: 3 s, commits at 1, 2, 3 and 3 s."""
    plan = solve_jointly(unit_batch(4), Capacities.constant([1] * 6, [1] * 6), [5], 1.0)
    assert plan.last_s == 3
    assert sorted(plan.commit_s.tolist()) == [1, 2, 3, 3]
    assert sorted(plan.destination.tolist()) == [4, 4, 5, 5]


def test_a_deadline_chooses_who_is_first() -> None:
    """Without it the fast uplink is first, at 1 s; with it its update waits for the slow one, at 2 s."""
    capacities = Capacities.constant([0.5, 1, 1], [1, 1, 2])
    assert solve_jointly(unit_batch(2), capacities, [], 0.5).commit_s.tolist() == [2, 1]
    due = unit_batch(2, deadline=np.array([1, 2]))
    assert solve_jointly(due, capacities, [], 0.5).commit_s.tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="no optimum"):
        solve_jointly(unit_batch(2, deadline=np.array([1, 1])), capacities, [], 0.5)


def test_without_aggregators_it_is_no_better_than_the_exact_order() -> None:
    """The exact program is free of slots; the grid costs at most a slot for each commit."""
    random = np.random.default_rng(5)
    for _ in range(4):
        updates = Updates(size=random.integers(1, 4, 3).astype(float), host=np.arange(3), server=3)
        capacities = Capacities.constant([*random.choice([1.0, 2.0], 3), 2.0], [2.0] * 4)
        joint = solve_jointly(updates, capacities, [], 0.5)
        exact = solve_exactly(updates, capacities)
        assert joint.last_s >= exact.commit_s[-1] - 1e-6
        assert joint.last_s <= exact.commit_s[-1] + 0.5 + 1e-6


def test_no_plan_of_order_and_aggregation_is_faster() -> None:
    """Where links take whole slots for every update, the two algorithms end with the optimum or after it."""
    random = np.random.default_rng(2)
    for _ in range(4):
        count = int(random.integers(3, 5))
        updates = unit_batch(count)
        capacities = Capacities.constant([*random.choice([0.5, 1.0], count), 1, 1], [1.0] * (count + 2))
        plan = aggregate(updates, order_updates(updates, capacities).commits, capacities, [count + 1])
        assert plan is not None
        assert solve_jointly(updates, capacities, [count + 1], 1.0).last_s <= plan.last_s + 1e-6


def test_what_it_refuses() -> None:
    """More updates than the program takes, and slots that are too short for the batch."""
    with pytest.raises(ValueError, match="at most 5"):
        solve_jointly(unit_batch(6), Capacities.constant([1] * 7, [1] * 7), [], 1.0)
    with pytest.raises(ValueError, match="lengthen the slot"):
        solve_jointly(unit_batch(2), Capacities.constant([1] * 3, [1] * 3), [], 0.01)
