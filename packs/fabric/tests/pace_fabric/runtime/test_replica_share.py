"""What the replica receives of a batch, on the hand-computed instance of two units and half a link."""

import numpy as np
import pytest

from pace.errors import InvalidOptions
from pace_fabric.documents.batch import DivergenceLimit
from pace_fabric.runtime.scheduling.commit_groups import FabricUpdate, towards, updates_of
from pace_fabric.runtime.scheduling.known_hosts import NetworkView
from pace_fabric.runtime.scheduling.replica_share import ReplicaShare, plan_share, whole_steps
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from pace_fabric.runtime.update_records import HeldUpdate
from pace_fabric.solver.aggregation import AggregateSize
from pace_fabric.solver.capacity import Capacities
from pace_fabric.solver.replication import LeadLimit

NAMES = ("h0", "h1", "server", "replica")


def shared(most: float) -> ReplicaShare:
    """Return the share of two updates of norms 3 and 4, with momentum 0.5 and a history of norm 2."""
    view = NetworkView(
        Capacities.constant(np.ones(4), [1, 1, 1, 0.5]), NAMES, {name: n for n, name in enumerate(NAMES)}
    )
    batch = [
        FabricUpdate(HeldUpdate(id=f"w{n}-1", version=0, numbers=1, size_bytes=1, norm=norm), f"h{n}")
        for n, norm in enumerate((3.0, 4.0))
    ]
    plan = towards(updates_of(batch, view, "server", 0, None), [0, 1], view, (), "server")
    assert plan is not None
    options = SchedulerOptions(
        momentum=0.5, exact_momentum=True, divergence=DivergenceLimit(kind="norm", max=most)
    )
    limit = LeadLimit(most=most, gamma=0.5, history_norm=2.0)
    share = plan_share([], batch, plan, view, ("server", "replica"), limit, (), AggregateSize(), options)
    assert share is not None
    return share


@pytest.mark.parametrize(
    ("most", "held", "groups", "last_s"),
    [(12.0, set(), (), 2.0), (8.0, {1}, ((0,),), 4.0), (5.0, {1}, ((0,), (1,)), 5.0)],
)
def test_the_servers_last_transfer_waits_for_the_replica(
    most: float, held: set[int], groups: tuple[tuple[int, ...], ...], last_s: float
) -> None:
    """Both punted, one received first, or both: as computed by hand."""
    share = shared(most)
    assert share.held == held
    assert share.groups == groups
    assert share.server.last_s == pytest.approx(last_s)
    assert {number for hop in share.hops for number in hop.updates} == {n for g in groups for n in g}


def test_steps_go_to_the_replica_whole() -> None:
    """Of three updates of which the last two are one step, two received make the first step only."""
    sequence = [(1, 0), (2, 0), (2, 1)]
    assert whole_steps(sequence) == [(0,), (1, 2)]
    assert whole_steps(sequence, 2) == [(0,)]


def test_a_mean_is_no_step_of_every_update() -> None:
    """Exact momentum and weighted means contradict each other."""
    with pytest.raises(InvalidOptions, match="choose one"):
        SchedulerOptions(momentum=0.9, exact_momentum=True, merge="weighted-mean")
