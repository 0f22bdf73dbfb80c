"""The wire under attack: whatever comes, the server survives, names the peer, and serves others."""

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pace.errors import CommunicationFailed
from pace.wire.frames import (
    HEADER_BYTES,
    VERSION,
    Frame,
    FrameKind,
    WireFault,
    unpack,
)
from pace_servers.runtime.layout import Layout, ServedSegment, read_layout
from pace_servers.runtime.server import Server
from tests.pace_servers.runtime.links import Worker, layout_of

_U32 = st.integers(0, (1 << 32) - 1)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that all attacks of this module meet, one after the other."""
    with Server(token="secret") as running:
        yield running


def _serves(server: Server) -> None:
    """Two good workers still get their sum."""
    workers = [Worker(server, rank, 2, token="secret") for rank in range(2)]
    tensors = [torch.ones(3), torch.ones(3)]
    for worker, tensor in zip(workers, tensors, strict=True):
        worker.link.announce(layout_of([tensor]))
    for arrival in [w.start(0, t) for w, t in zip(workers, tensors, strict=True)]:
        arrival.wait()
    assert torch.equal(tensors[0], torch.full((3,), 2.0))
    for worker in workers:
        worker.finish()
    _wait_for_end(server)


def _wait_for_end(server: Server) -> None:
    deadline = time.monotonic() + 30
    while server.sessions and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not server.sessions


def _read(connection: socket.socket) -> tuple[Frame, bytes]:
    header = connection.recv(HEADER_BYTES, socket.MSG_WAITALL)
    frame = unpack(header)
    return frame, connection.recv(frame.length, socket.MSG_WAITALL) if frame.length else b""


def _connect(server: Server) -> socket.socket:
    return socket.create_connection((server.host, server.port), 10)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["segments", "purpose", "staleness", "deterministic", "chunk_bytes", "x"]),
                inner,
            )
        ),
        max_leaves=12,
    )
)
@settings(max_examples=200)
def test_layouts_are_read_or_refused(document: Any) -> None:
    """No document raises anything but a fault, and what is read is within its limits."""
    try:
        layout = read_layout(json.dumps(document).encode(), most_bytes=1000)
    except WireFault:
        return
    assert layout.size_bytes <= 1000


@given(st.integers(-1, 40), st.integers(0, 1 << 20), st.integers(0, 1 << 20))
def test_only_chunks_of_the_layout_are_taken(segment: int, offset: int, length: int) -> None:
    """A frame is checked to the byte before anything is read into memory."""
    layout = Layout(
        segments=(ServedSegment(size_bytes=100_000, dtype="float32", turn=0),) * 3, chunk_bytes=65_536
    )
    frame = Frame(kind=FrameKind.PUSH, segment=max(segment, 0), offset=offset, length=length)
    right = frame.segment < 3 and (offset, length) in [(0, 65_536), (65_536, 34_464), (0, 100_000)]
    if right:
        assert list(layout.check(frame)) == [
            number for number in (0, 1) if offset <= number * 65_536 < offset + length
        ]
    else:
        with pytest.raises(WireFault):
            layout.check(frame)


@pytest.mark.parametrize(("offset", "length"), [(0, 65_536), (0, 262_144), (65_536, 100_000 - 65_536)])
def test_runs_of_chunks_are_taken(offset: int, length: int) -> None:
    """Up to 256 KiB of neighboring chunks, and what is left at a segment's end."""
    size = offset + length if length % 65_536 else 1 << 20
    layout = Layout(segments=(ServedSegment(size_bytes=size, dtype="float32", turn=0),), chunk_bytes=65_536)
    frame = Frame(kind=FrameKind.PUSH, offset=offset, length=length)
    assert layout.check(frame) == range(offset // 65_536, -(-(offset + length) // 65_536))
    for wrong in (length - 4, length + 4, 262_144 + 65_536, 0):
        with pytest.raises(WireFault):
            layout.check(frame._replace(length=wrong))


@pytest.mark.parametrize(
    "attack",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"x" * 100,
        Frame(kind=FrameKind.HELLO, length=4096).pack() + b"short",
        struct.pack("!4sBBHIIQII", b"PACE", VERSION, 2, 0, 0, 0, 0, (1 << 32) - 1, 0),
        struct.pack("!4sBBHIIQII", b"PACE", 9, 2, 0, 0, 0, 0, 0, 0),
        Frame(kind=FrameKind.PUSH, length=64).pack() + b"x" * 64,
        Frame(kind=FrameKind.HELLO, length=10).pack() + b"x" * 10,
        Frame(kind=FrameKind.HELLO, length=66).pack() + b"x" * 64 + b"[]",
    ],
    ids=["nothing", "http", "truncated", "oversized", "version", "push", "short-hello", "forged"],
)
def test_callers_that_are_no_workers_are_dropped(server: Server, attack: bytes) -> None:
    """Truncated, oversized, foreign or forged: the connection ends, and the next job is served."""
    with _connect(server) as connection:
        _read(connection)
        rest = b""
        with contextlib.suppress(OSError):  # it may have ended in the middle of the attack
            connection.sendall(attack)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(4096):
                rest += part
        assert rest == b"" or unpack(rest[:HEADER_BYTES]).kind is FrameKind.ABORT
    assert not server.sessions
    _serves(server)


def test_a_wrong_token_is_refused_on_both_sides(server: Server) -> None:
    """A worker without the token learns nothing; a server without it gets nothing."""
    for token in (None, "other"):
        with pytest.raises(CommunicationFailed, match="does not know the token"):
            Worker(server, 0, 2, token=token)
    assert not server.sessions
    with _Impostor() as (host, port):
        fake: Any = type("Fake", (), {"host": host, "port": port})
        with pytest.raises(CommunicationFailed, match="does not know the token: nothing was sent"):
            Worker(fake, 0, 2, token="secret")
    _serves(server)


class _Impostor:
    """A server that says yes to everybody."""

    def __enter__(self) -> tuple[str, int]:

        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        host, port = self._socket.getsockname()
        return host, port

    def _run(self) -> None:
        connection, _ = self._socket.accept()
        with connection:
            connection.sendall(Frame(kind=FrameKind.CHALLENGE, length=32).pack() + b"c" * 32)
            _read(connection)
            connection.sendall(Frame(kind=FrameKind.WELCOME, length=32).pack() + b"w" * 32)

    def __exit__(self, *_raised: object) -> None:
        self._thread.join()
        self._socket.close()


def test_a_replayed_hello_is_refused(server: Server) -> None:
    """What was recorded from a good worker is no answer to the next challenge."""
    recorded = b""
    relay = socket.create_server(("127.0.0.1", 0))

    def record() -> None:
        nonlocal recorded
        inner, _ = relay.accept()
        with inner, _connect(server) as outer:
            frame, challenge = _read(outer)
            inner.sendall(frame.pack() + challenge)
            hello, words = _read(inner)
            recorded = hello.pack() + words

    thread = threading.Thread(target=record)
    thread.start()
    host, port = relay.getsockname()
    fake: Any = type("Fake", (), {"host": host, "port": port})
    with pytest.raises(CommunicationFailed):
        Worker(fake, 0, 2, token="secret")
    thread.join()
    relay.close()
    with _connect(server) as connection:
        _read(connection)
        connection.sendall(recorded)
        frame, reason = _read(connection)
        assert frame.kind is FrameKind.ABORT
        assert b"does not know the token" in reason
    _serves(server)


def test_another_plan_is_refused_and_named(server: Server) -> None:
    """Workers whose layouts differ end their job, and the message says who."""
    workers = [Worker(server, rank, 2, token="secret") for rank in range(2)]
    workers[0].link.announce(layout_of([torch.ones(3)]))
    first = workers[0].start(0, torch.ones(3))
    workers[1].link.announce(layout_of([torch.ones(3, dtype=torch.float64)]))
    with pytest.raises(CommunicationFailed, match=r"rank \d breaks the protocol: it follows another plan"):
        first.wait()
    assert workers[1].failed.wait(30)
    for worker in workers:
        worker.link.close()
    _wait_for_end(server)
    _serves(server)


@pytest.mark.parametrize(
    "frame",
    [
        Frame(kind=FrameKind.PUSH, round=1, segment=7, length=12),
        Frame(kind=FrameKind.PUSH, round=1, segment=0, length=8),
        Frame(kind=FrameKind.PUSH, round=2, segment=0, length=12),
        Frame(kind=FrameKind.PUSH, layout=4, round=1, segment=0, length=12),
        Frame(kind=FrameKind.SEED, round=0, segment=0, length=12),
        Frame(kind=FrameKind.PULL, round=1, segment=0, length=12),
        Frame(kind=FrameKind.WELCOME, length=12),
    ],
    ids=["segment", "length", "round", "layout", "seed", "pull", "welcome"],
)
def test_a_worker_that_lies_is_named(server: Server, frame: Frame) -> None:
    """A rank that is let in and then breaks the protocol ends its own job and no other."""
    workers = [Worker(server, rank, 2, token="secret") for rank in range(2)]
    for worker in workers:
        worker.link.announce(layout_of([torch.ones(3)]))
    waiting = workers[0].start(0, torch.ones(3))
    deadline = time.monotonic() + 30
    while server.sessions["job"].members[1].layout != 0 and time.monotonic() < deadline:
        time.sleep(0.01)  # from then on its writing thread is idle
    workers[1].link._stream.write(frame, b"x" * frame.length)
    with pytest.raises(CommunicationFailed, match="rank 1 breaks the protocol"):
        waiting.wait()
    for worker in workers:
        worker.link.abort("over")
        worker.link.close()
    _wait_for_end(server)
    _serves(server)


def test_a_rank_cannot_come_twice(server: Server) -> None:
    """The second caller of a rank is refused; the first goes on."""
    first = Worker(server, 0, 2, token="secret")
    with pytest.raises(CommunicationFailed, match="rank 0 is already connected"):
        Worker(server, 0, 2, token="secret")
    with pytest.raises(CommunicationFailed, match="says that there are 3 workers"):
        Worker(server, 1, 3, token="secret")
    second = Worker(server, 1, 2, token="secret")
    for worker in (first, second):
        worker.finish()
    _wait_for_end(server)
