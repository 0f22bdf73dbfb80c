"""What links cost: worked by hand from times, and measured against servers that are there."""

import pytest

from pace_servers.runtime.measure import NUM_PARTS, TimedExchanges, evaluate, measure_links
from pace_servers.runtime.options import ParameterServers
from pace_servers.runtime.server import Server


def test_times_by_hand() -> None:
    """A few bytes take 2 ms; 1 kB more to each of two servers 8 ms; 127 more parts to each 254 ms."""
    times = TimedExchanges(
        share_bytes=1000, small_s=[0.002, 0.9, 0.001], large_s=[0.010], parts_s=[0.256, 0.1, 0.3]
    )
    found = evaluate(times, 2)
    assert found.round_trip_s == 0.002
    assert found.seconds_per_byte == pytest.approx(0.008 / 2000)
    assert NUM_PARTS == 128
    assert found.partition_s == pytest.approx(0.001)


def test_parts_never_gain() -> None:
    """Clocks that say so are not believed."""
    times = TimedExchanges(share_bytes=1000, small_s=[0.002], large_s=[0.01], parts_s=[0.001])
    assert evaluate(times, 1).partition_s == 0.0


def test_two_servers_are_measured() -> None:
    """The document has the servers, and no part below the chunk that a connection writes at once."""
    with Server(token="secret") as first, Server(token="secret") as second:
        options = ParameterServers(
            servers=[f"127.0.0.1:{server.port}" for server in (first, second)], token="secret"
        )
        cost = measure_links(options, size_bytes=1 << 20, repeats=1, within_s=60.0).cost()
    assert cost.servers == 2
    assert cost.min_partition_bytes == 64 << 10
    assert cost.worker_bytes_per_s > 0
    assert cost.partition_s >= 0
