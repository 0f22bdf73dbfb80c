"""What a plan's pace does to the connections of a worker and its server."""

import socket

import torch

from pace.wire.streams import _TCP_NOTSENT_LOWAT, Stream
from pace_servers.runtime.server import Server
from tests.pace_servers.runtime.links import Worker, layout_of

KIB = 1 << 10


def test_a_slow_connection_holds_little_that_nothing_can_overtake() -> None:
    """What the kernel may hold unsent follows the rate, within bounds, at both ends, as the kernel says."""

    def held(stream: Stream) -> int:
        found = stream._socket.getsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT)
        assert found == stream.notsent_bytes
        return found

    with Server() as server:
        worker = Worker(server, 0, 1)
        worker.link.announce(layout_of([torch.zeros(8)], pace_bytes_per_s=6e6))
        worker.start(0, torch.zeros(8)).wait()
        ours, theirs = worker.link._stream, server.sessions["job"].members[0].stream
        assert held(ours) == held(theirs) == 24_000
        rates = {6.5e6: 24_000, 1e3: 16 * KIB, 1e9: 128 * KIB, 30e6: 128 * KIB, 10e6: 40_000}
        for rate, expected in rates.items():
            ours.expect_rate(rate)
            assert held(ours) == expected
        worker.finish()


def test_pacing_is_set_at_both_ends_and_can_be_read_back() -> None:
    """A plan's pace holds for worker and server, and ends with the plan; the kernel says so itself."""
    with Server() as server:
        worker = Worker(server, 0, 1)
        tensor = torch.ones(10)
        found = []
        for pace in (None, 3e6, None):
            worker.link.announce(layout_of([tensor], pace_bytes_per_s=pace))
            worker._rounds.clear()
            worker.start(0, tensor).wait()
            member = server.sessions["job"].members[0]
            found.append((worker.link.pacing_bytes_per_s, member.stream.pacing_bytes_per_s))
        worker.finish()
    assert found == [(None, None), (3_000_000, 3_000_000), (None, None)]
