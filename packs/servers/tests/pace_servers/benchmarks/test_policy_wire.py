"""Policies over real connections on loopback: who is handed over when, and what servers hold back."""

import threading
from collections.abc import Iterator

import pytest
import torch

from benchmarks.harness.training.policy_wire import (
    BarrierServer,
    HandedOverLink,
    ShuffledBarrierServer,
    ShuffledServer,
    ShuffledSession,
    WholeServer,
    _Part,
    _Purse,
    server_type,
)
from pace.wire.addresses import ServerAddress
from pace.wire.handshake import Greeting
from pace_servers.runtime.layout import Layout, ServedSegment, memory_of
from pace_servers.runtime.link import PushPullCall
from pace_servers.runtime.server import Server
from pace_servers.simulation.traffic import ServersRules

WITHIN_S = 60.0


def layout_of(*sizes: int, chunk_bytes: int = 64) -> Layout:
    """Return segments of so many bytes, in the order of their turns."""
    return Layout(
        segments=tuple(
            ServedSegment(size_bytes=size, dtype="float32", turn=turn) for turn, size in enumerate(sizes)
        ),
        chunk_bytes=chunk_bytes,
    )


class Peer:
    """A worker that pushes ones."""

    def __init__(self, server: Server, rank: int, size: int, layout: Layout) -> None:
        self.layout = layout
        self.arrived: list[int] = []
        self._lock = threading.Lock()
        self.link = HandedOverLink(
            ServerAddress(host=server.host, port=server.port, name="server"),
            Greeting(job="job", rank=rank, size=size, silence_s=30.0),
            token=None,
            on_failure=lambda _reason: None,
            within_s=WITHIN_S,
        )
        self.link.announce(layout)

    def push(self, segment: int) -> threading.Event:
        """Push a segment; the event is set when its sum is back."""
        back = threading.Event()
        tensor = torch.ones(self.layout.segments[segment].size_bytes // 4)

        def done(error: BaseException | None) -> None:
            assert error is None
            with self._lock:
                self.arrived.append(segment)
            back.set()

        self.link.start(PushPullCall(segment=segment, round=1, memory=memory_of(tensor), done=done))
        return back


@pytest.fixture
def peers() -> Iterator[list[Peer]]:
    """Workers to be closed at the end."""
    made: list[Peer] = []
    yield made
    for peer in made:
        peer.link.finish()
    for peer in made:
        peer.link.close()


def test_a_barrier_server_answers_when_it_is_asked(peers: list[Peer]) -> None:
    """Complete sums stay until both workers have asked; then they come in the order of their turns."""
    layout = layout_of(4096, 256, 128, 4, 4)
    with BarrierServer() as server:
        peers += [Peer(server, rank, 2, layout) for rank in (0, 1)]
        # Pushed in another order than that of their turns.
        backs = [peer.push(segment) for peer in peers for segment in (2, 1, 0)]
        pushed = [peer.push(3) for peer in peers]
        assert all(event.wait(WITHIN_S) for event in pushed)
        # Everything is at the server, and nothing has come back but the marker.
        assert not any(event.is_set() for event in backs)
        asked = [peer.push(4) for peer in peers]
        assert all(event.wait(WITHIN_S) for event in (*asked, *backs))
    assert [segment for segment in peers[0].arrived if segment < 3] == [0, 1, 2]


def test_a_server_of_whole_partitions_holds_chunks_back(peers: list[Peer]) -> None:
    """A partition of several chunks comes back after one that was pushed later but is complete earlier."""
    layout = layout_of(64 * 50, 64)
    with WholeServer() as server:
        peers += [Peer(server, rank, 2, layout) for rank in (0, 1)]
        back = [peers[0].push(0), peers[0].push(1), peers[1].push(1)]
        assert all(event.wait(WITHIN_S) for event in back[1:])
        assert not back[0].is_set()
        back.append(peers[1].push(0))
        assert all(event.wait(WITHIN_S) for event in back)
    assert [peer.arrived for peer in peers] == [[1, 0], [1, 0]]


def test_a_credit_admits_as_its_system_does() -> None:
    """The paper: when the credit covers all of it. The code: while any is left. One always goes."""
    part = _Part(link=0, size_bytes=60, call=None)  # type: ignore[arg-type]  # only its size is asked for
    paper = ServersRules(credit_bytes=100)
    code = ServersRules(credit_bytes=100, overshoots=True)
    empty, used, full = _Purse(), _Purse(), _Purse()
    used.parts, used.size_bytes = 1, 60
    full.parts, full.size_bytes = 2, 120
    assert [purse.admits(part, paper) for purse in (empty, used, full)] == [True, False, False]
    assert [purse.admits(part, code) for purse in (empty, used, full)] == [True, True, False]
    assert empty.admits(part, ServersRules(credit_bytes=0))


def test_rules_choose_the_server() -> None:
    """A barrier at every step needs a server that holds answers back."""
    assert server_type(ServersRules(step_barrier=True)) is BarrierServer
    assert server_type(ServersRules()) is WholeServer
    assert server_type(ServersRules(step_barrier=True), shuffled=True) is ShuffledBarrierServer
    assert server_type(ServersRules(), shuffled=True) is ShuffledServer


def test_a_random_order_leaves_markers_first() -> None:
    """Markers have turn 0 and stay before all partitions, whose places are drawn anew."""
    session = object.__new__(ShuffledSession)
    assert session._rank(0) == 0
    drawn = {session._rank(1) for _ in range(20)}
    assert len(drawn) > 1
    assert min(drawn) >= 1
