"""The cluster document and the cost of push and pull: what is refused, and rates worked by hand."""

import json
from typing import Any

import pytest

from pace.documents.cluster import Cluster, parse_cluster
from pace.documents.cost_document import NetworkChange
from pace.documents.profile import parse_profile
from pace.documents.push_pull import PushPull
from pace.errors import InvalidCluster
from tests.strategies import layered

DOCUMENT: dict[str, Any] = {
    "schema_version": 1,
    "name": "two servers",
    "exchange": {"kind": "push-pull", "servers": 2, "worker_bytes_per_s": 1e9},
    "ratios": [{"gradient": "embedding", "push": 0.01}],
}


def test_a_cluster_is_read_and_written() -> None:
    """What is left out has its default; the same cluster gives the same bytes."""
    cluster = parse_cluster(json.dumps(DOCUMENT))
    assert cluster.exchange == PushPull(servers=2, worker_bytes_per_s=1e9)
    assert (cluster.ratios[0].push, cluster.ratios[0].pull) == (0.01, 1.0)
    assert parse_cluster(cluster.to_json()) == cluster
    assert parse_cluster(cluster.to_json()).to_json() == cluster.to_json()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"exchange": {"kind": "push-pull", "servers": 0, "worker_bytes_per_s": 1e9}}, "servers"),
        ({"exchange": {"kind": "push-pull", "servers": 1, "worker_bytes_per_s": 0}}, "worker_bytes_per_s"),
        ({"exchange": {"kind": "ring", "servers": 1, "worker_bytes_per_s": 1e9}}, "kind"),
        ({"ratios": [{"gradient": "a", "push": 0}]}, "push"),
        ({"ratios": [{"gradient": "a"}, {"gradient": "a"}]}, 'gradient "a" has two ratios'),
        ({"schema_version": 2}, "schema_version"),
        ({"servers": 3}, "servers"),
        ({"exchange": DOCUMENT["exchange"] | {"min_partition_bytes": -1}}, "min_partition_bytes"),
        ({"exchange": DOCUMENT["exchange"] | {"min_partition_bytes": 0.5}}, "min_partition_bytes"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], named: str) -> None:
    """The message names the field."""
    with pytest.raises(InvalidCluster, match=named):
        parse_cluster(json.dumps(DOCUMENT | change))


def test_a_smallest_part_is_written_only_if_there_is_one() -> None:
    """Documents without one keep their bytes and digests; one with it has others, and is read back."""
    exchange = PushPull(servers=2, worker_bytes_per_s=1e9, partition_s=5e-5)
    profile = layered([8, 4], allreduce=exchange, workers=4)
    # From before there was such a field.
    assert profile.sha256 == "38fb215ef00c98c3e2288b87a120567e8d61d127abe97a47871a7636732929d7"
    assert b"min_partition_bytes" not in profile.to_json() + parse_cluster(json.dumps(DOCUMENT)).to_json()
    coarse = exchange.model_copy(update={"min_partition_bytes": 4096})
    other = profile.replace(allreduce=coarse)
    assert other.sha256 != profile.sha256
    assert other.fingerprint == profile.fingerprint
    assert parse_profile(other.to_json()).allreduce == coarse
    cluster = Cluster(name="coarse", exchange=coarse)
    assert parse_cluster(cluster.to_json()) == cluster


@pytest.mark.parametrize(
    ("servers", "colocated", "server_rate", "workers", "expected"),
    [
        (4, False, None, 4, 1.0),  # as many servers as workers: the worker's link
        (1, False, None, 4, 4.0),  # one server: its link carries all four
        (2, False, 8.0, 4, 1.0),  # two servers eight times as fast
        (4, True, None, 4, 1.5),  # a ring's 2 (W - 1) / W
        (8, True, None, 8, 1.75),
        (1, True, None, 4, 3.0),  # one host answers the other three
        (2, False, None, 1, 1.0),
    ],
)
def test_a_byte_takes_what_the_busiest_link_takes(
    servers: int, colocated: bool, server_rate: float | None, workers: int, expected: float
) -> None:
    """The layouts' seconds per byte at 1 byte/s."""
    exchange = PushPull(
        servers=servers, colocated=colocated, worker_bytes_per_s=1.0, server_bytes_per_s=server_rate
    )
    assert exchange.seconds_per_byte(workers) == expected
    assert float(exchange.cost(workers)(10)) == pytest.approx(10 * expected)


def test_servers_need_hosts() -> None:
    """More servers than workers' hosts, or one worker alone on its server, cannot be colocated."""
    with pytest.raises(ValueError, match="do not fit"):
        PushPull(servers=5, colocated=True, worker_bytes_per_s=1.0).seconds_per_byte(4)
    with pytest.raises(ValueError, match="nothing to exchange"):
        PushPull(servers=1, colocated=True, worker_bytes_per_s=1.0).links(1)


def test_colocated_servers_have_no_links_of_their_own() -> None:
    """A rate that nothing would use is refused, by its name."""
    exchange = DOCUMENT["exchange"] | {"colocated": True, "server_bytes_per_s": 2.0}
    with pytest.raises(InvalidCluster, match="server_bytes_per_s is 2, but colocated servers use the"):
        parse_cluster(json.dumps(DOCUMENT | {"exchange": exchange}))


def test_connections_are_paced_so_that_no_queue_forms() -> None:
    """min(B_w / S, B_s / W): all connections of a host together fill its link and no more."""
    assert PushPull(servers=4, worker_bytes_per_s=8.0).pace_bytes_per_s(2) == 2.0
    assert PushPull(servers=2, worker_bytes_per_s=8.0).pace_bytes_per_s(4) == 2.0


def test_a_network_may_change() -> None:
    """Servers keep their ratio to the workers' links; two messages make a round trip."""
    exchange = PushPull(servers=2, worker_bytes_per_s=2.0, server_bytes_per_s=6.0)
    changed = exchange.with_changes(
        NetworkChange(measured_workers=4, bandwidth_bytes_per_s=4.0, latency_s=0.5)
    )
    assert (changed.worker_bytes_per_s, changed.server_bytes_per_s, changed.round_trip_s) == (4.0, 12.0, 1.0)


def test_the_bundled_fields_are_what_others_read() -> None:
    """Runtime and scripts read these; renaming one is a new schema_version."""
    assert list(Cluster.model_fields) == ["schema_version", "name", "exchange", "ratios", "metadata"]
    assert list(PushPull.model_fields) == [
        "kind",
        "servers",
        "colocated",
        "worker_bytes_per_s",
        "server_bytes_per_s",
        "partition_s",
        "round_trip_s",
        "min_partition_bytes",
    ]
