"""How a worker and a server introduce themselves to each other."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from pace.wire.frames import Frame, FrameKind, WireFault
from pace.wire.handshake import Greeting, answer, call
from pace.wire.streams import Stream

GREETING = Greeting(job="job", rank=0, size=1, silence_s=20.0)


def let_in(stream: Stream, pings: int) -> Greeting:
    """Answer a worker as a busy server does, whose signs of life come first."""
    greeting, welcome = answer(stream, "secret")
    for _ in range(pings):
        stream.write(Frame(kind=FrameKind.PING))
    stream.write(Frame(kind=FrameKind.WELCOME, length=len(welcome)), welcome)
    return greeting


def introduce(pings: int) -> Greeting:
    """Let a worker call a server over a connection of their own; return what the server learned."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    with ThreadPoolExecutor(1) as server, ours, theirs:
        met = server.submit(let_in, Stream(theirs, silence_s=20.0), pings)
        call(Stream(ours, silence_s=20.0), "secret", GREETING, "server")
        return met.result()


def test_a_busy_server_may_give_signs_of_life_before_its_answer() -> None:
    """They are no answer, and no fault."""
    assert introduce(0) == introduce(3) == GREETING


def test_signs_of_life_without_end_are_a_fault() -> None:
    """Nobody is waited for for ever who does not say who it is."""
    with pytest.raises(WireFault, match="a PING frame where a WELCOME frame was expected"):
        introduce(150)
