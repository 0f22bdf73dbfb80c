"""What plans over servers claim: priorities that take longer are refused, simulations take as long."""

import copy
import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pace import Profile
from pace.cli import app
from pace.documents.options import Options
from pace.documents.schedule import parse_schedule
from pace.kinds import check
from pace.simulation import make_policy
from pace_servers.planning.optimize import optimize_servers
from pace_servers.simulation.run import run_server_policy
from tests.pace_servers.load.forged_plans import window_by_priority
from tests.pace_servers.planning.clusters import cluster
from tests.strategies import affine, layered


def drawn(random_: random.Random, workers: int) -> Profile:
    """Return three layers of 4 to 300 kB on links of 1 MB/s."""
    return layered(
        [random_.randint(1000, 75_000) for _ in range(3)],
        allreduce=affine(0, 1e-6),
        backward_s=[random_.uniform(0, 0.3) for _ in range(3)],
        forward_s=[random_.uniform(0, 0.3) for _ in range(3)],
        dtypes=["float32"] * 3,
        workers=workers,
    )


def test_priorities_that_take_longer_than_claimed_are_refused() -> None:
    """Three layers of 1 MB over two servers: with the last first, the window is 6 % longer."""
    profile = layered(
        [250_000] * 3,
        allreduce=affine(0, 1e-7),
        backward_s=[0.05] * 3,
        forward_s=[0.1] * 3,
        dtypes=["float32"] * 3,
        workers=2,
    )
    chosen = cluster(2, bytes_per_s=1e7, partition_s=1e-3, round_trip_s=1e-3)
    schedule = optimize_servers(profile, Options(cluster=chosen))
    claimed = schedule.predicted.iteration_s
    assert check(profile, schedule) == []
    assert window_by_priority(profile, schedule) == pytest.approx(claimed)
    document = json.loads(schedule.to_json())
    turned, paced = copy.deepcopy(document), copy.deepcopy(document)
    last = max(transfer["priority"] for transfer in document["transfers"])
    for transfer in turned["transfers"]:
        transfer["priority"] = last - transfer["priority"]
    assert window_by_priority(profile, parse_schedule(json.dumps(turned))) > 1.05 * claimed
    assert check(profile, parse_schedule(json.dumps(turned)))
    paced["execution"]["connection_bytes_per_s"] = 1.0
    assert check(profile, parse_schedule(json.dumps(paced)))


@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (2, 2), (3, 2), (4, 2)])
def test_colocated_plans_take_what_they_predict(workers: int, servers: int) -> None:
    """On two hosts, or over one or two servers: the simulated window is the planned one, to rounding."""
    random_ = random.Random(4)
    chosen = cluster(servers, bytes_per_s=1e6, colocated=True, partition_s=1e-2)
    for _ in range(15):
        profile = drawn(random_, workers)
        schedule = optimize_servers(profile, Options(cluster=chosen))
        assert check(profile, schedule) == []
        simulated = run_server_policy(profile, chosen, make_policy("pace", "servers")).iteration_s
        assert simulated == pytest.approx(schedule.predicted.iteration_s, rel=1e-9)


@pytest.mark.parametrize(("workers", "servers"), [(3, 3), (4, 4), (4, 3), (5, 3)])
@pytest.mark.parametrize("uneven", [False, True])
def test_colocated_plans_on_more_hosts_are_close_to_their_simulation(
    workers: int, servers: int, *, uneven: bool
) -> None:
    """Workers that hold a server of their own are not in lock step: a few percent more or less.

    Also if other bytes are sent than the gradients have, in each direction.
    """
    random_ = random.Random(4)
    for _ in range(8):
        profile = drawn(random_, workers)
        ratios = {
            gradient.name: (random_.choice([0.1, 0.5, 1.0]), random_.choice([0.1, 0.5, 1.0]))
            for gradient in profile.gradients
            if uneven and random_.random() < 0.5
        }
        chosen = cluster(servers, bytes_per_s=1e6, colocated=True, partition_s=1e-2, ratios=ratios)
        schedule = optimize_servers(profile, Options(cluster=chosen))
        simulated = run_server_policy(profile, chosen, make_policy("pace", "servers")).iteration_s
        assert simulated == pytest.approx(schedule.predicted.iteration_s, rel=0.05)


def test_the_commands_agree_on_colocated_servers(tmp_path: Path) -> None:
    """`pace optimize` predicts what `pace simulate` takes."""
    profile = tmp_path / "profile.json"
    profile.write_bytes(drawn(random.Random(1), 2).to_json())
    servers = [str(profile), "--exchange", "servers", "--servers", "2", "--colocated", "--json"]
    planned = json.loads(CliRunner().invoke(app, ["optimize", *servers]).stdout)
    simulated = json.loads(CliRunner().invoke(app, ["simulate", *servers, "--policy", "pace"]).stdout)
    assert simulated["policies"][0]["iteration_s"] == pytest.approx(planned["predicted"]["iteration_s"])


def test_when_the_rows_of_a_table_travel() -> None:
    """A table as a gradient, worked by hand: 4 bytes at 1 byte/s to the server, 8 bytes of rows from it."""
    profile = layered([4], allreduce=affine(0, 1), backward_s=[1], forward_s=[1], dtypes=["int8"], workers=1)
    rows = profile.gradients[0].name
    chosen = cluster(ratios={rows: (1.0, 2.0)}, min_partition_bytes=4)
    schedule = optimize_servers(profile, Options(cluster=chosen))
    assert check(profile, schedule) == []
    push, pull = schedule.transfers
    assert (push.start_s, push.end_s, pull.start_s, pull.end_s) == (1, 5, 5, 13)
    assert schedule.predicted.iteration_s == 14
    simulated = run_server_policy(profile, chosen, make_policy("pace", "servers")).iteration_s
    assert simulated == pytest.approx(14)
