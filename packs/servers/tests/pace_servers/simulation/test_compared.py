"""``pace.simulate`` with servers: their policies by name, on the same windows."""

from typing import Any

import pytest

import pace
from pace import InvalidOptions, SimulationOptions
from pace.documents.cluster import Cluster
from pace.documents.push_pull import PushPull
from pace.simulation import make_policy
from pace.simulation.registry import policies_for
from pace_servers.simulation.run import run_server_policy
from tests.strategies import affine, layered

PROFILE = layered([8, 4, 12], allreduce=affine(0.125, 0.25), workers=2)
CLUSTER = Cluster(name="two", exchange=PushPull(servers=2, worker_bytes_per_s=4.0))


def test_all_policies_of_servers_are_compared() -> None:
    """On the servers that are given, or those of the profile; each takes what it takes alone."""
    found = pace.simulate(PROFILE, options=SimulationOptions(cluster=CLUSTER))
    assert tuple(found) == policies_for("servers")
    alone = run_server_policy(PROFILE, CLUSTER, make_policy("pace", "servers"))
    assert found["pace"].iteration_s == alone.iteration_s
    of_profile = PROFILE.replace(allreduce=CLUSTER.exchange)
    on_own = SimulationOptions(exchange="servers")
    assert pace.simulate(of_profile, "pace", on_own)["pace"].iteration_s == alone.iteration_s


def test_stale_workers_leave_out_what_ends_at_a_barrier() -> None:
    """TicTac has no stale pulls."""
    options = SimulationOptions(cluster=CLUSTER, staleness=1)
    assert not {"tio", "tao"} & set(pace.simulate(PROFILE, options=options))


@pytest.mark.parametrize(
    ("policies", "options", "named"),
    [
        ("ddp", {"cluster": CLUSTER}, "needs a profile without parameter servers"),
        ("fifo", {"exchange": "servers"}, "cluster"),
    ],
)
def test_what_servers_have_not_is_refused(policies: str, options: dict[str, Any], named: str) -> None:
    """A policy of one network; no servers at all."""
    with pytest.raises(InvalidOptions, match=named):
        pace.simulate(PROFILE, policies, SimulationOptions(**options))
