"""No field of a schedule over servers is left unread; see ``tests.pace.checker.test_every_field``."""

import pytest

from pace.documents.options import Options
from pace.kinds import optimize
from tests.pace.checker.every_field import RECORDS, accepted_changes, donors_of
from tests.pace.checker.test_every_field import PROFILE, WEAKER, faults_for, schedules
from tests.pace_servers.planning.clusters import cluster

# The cluster is given, and servers that are alike have the same proofs. The rule of the order, the limit on
# segments and what a runtime sends instead of a late segment are options.
GIVEN = {
    "cluster.name",
    "cluster.exchange.round_trip_s less",
    "cluster.exchange.server_bytes_per_s",
    "cluster.exchange.min_partition_bytes",
    "proofs.#.server",
    "proofs.#.server less",
    "bound.link",
    "solver.order",
    "solver.partition_bytes",
    "execution.discipline",
}


@pytest.mark.parametrize("colocated", [False, True])
def test_every_field_is_judged(colocated: bool) -> None:
    """Only records, options and the cluster may change, and a proof may prove less."""
    servers = cluster(2, bytes_per_s=20.0, colocated=colocated, partition_s=0.25, round_trip_s=0.5)
    schedule = optimize(PROFILE, Options(cluster=servers))
    donors = donors_of([*schedules().values(), schedule])
    assert accepted_changes(schedule, faults_for(PROFILE), donors) <= RECORDS | WEAKER | GIVEN
