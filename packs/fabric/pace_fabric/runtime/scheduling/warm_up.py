"""Loads the planner's compiled loops before anybody waits for them: the first time they are compiled."""

import numpy as np

from pace_fabric.solver.aggregation import aggregate
from pace_fabric.solver.capacity import Capacities
from pace_fabric.solver.distribution import distribute
from pace_fabric.solver.ordering import order_updates
from pace_fabric.solver.updates import Updates


def warm_up() -> None:
    """Plan something small."""
    capacities = Capacities.constant([1.0] * 4, [1.0] * 4)
    updates = Updates(size=np.ones(3), host=np.array([0, 1, 2]), server=3)
    order = order_updates(updates, capacities)
    aggregate(updates, order.commits, capacities, [0, 1])
    distribute(capacities, 3, [0, 1, 2], 1.0, [0, 1])
