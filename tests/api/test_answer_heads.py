"""The heads of answers: the same lines as uvicorn's, though a header is validated only once."""

import re
import socket
import threading
import time
from asyncio import Protocol
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from pace.api.http.server import make_protocol

_BODY = b"some text"


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer by path: with the body's length, without it, or with a header that is invalid."""
    del receive
    headers = {
        "/whole": [(b"Content-Length", b"%d" % len(_BODY)), (b"etag", b'"1"')],
        "/pieces": [(b"content-type", b"text/plain")],
        "/invalid": [(b"x-request-id", b"1\r\nset-cookie: 2")],
    }[scope["path"]]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": _BODY})


@contextmanager
def _served(protocol: type[Protocol]) -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            _answer, http=protocol, lifespan="off", log_config=None, access_log=False, server_header=False
        )
        server = uvicorn.Server(config)
        running = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        running.start()
        while not server.started:
            assert running.is_alive()
            time.sleep(0.01)
        try:
            yield listener
        finally:
            server.should_exit = True
            running.join()


def _said(listener: socket.socket, request: bytes) -> bytes:
    with socket.create_connection(listener.getsockname(), timeout=60) as connection:
        connection.sendall(request)
        with connection.makefile("rb") as answer:
            return re.sub(rb"date: [^\r]*", b"date: now", answer.read())


@pytest.mark.parametrize("path", ["whole", "pieces"])
@pytest.mark.parametrize(
    "request_line", ["GET /{} HTTP/1.1", "HEAD /{} HTTP/1.1", "GET /{} HTTP/1.0"], ids=str.lower
)
def test_heads_are_those_of_uvicorn(path: str, request_line: str) -> None:
    """Of answers with and without a length, to clients that close the connection or cannot keep it."""
    head = f"{request_line.format(path)}\r\nHost: here\r\n".encode()
    with _served(H11Protocol) as plain, _served(make_protocol(60.0, 60.0, 100)) as ours:
        for _ in range(2):
            said, expected = (
                _said(listener, head + b"Connection: close\r\n\r\n").partition(b"\r\n\r\n")
                for listener in (ours, plain)
            )
            assert said[0].startswith(b"HTTP/1.1 200 OK\r\ndate: now\r\n")
            assert sorted(said[0].split(b"\r\n")) == sorted(expected[0].split(b"\r\n"))
            assert said[1:] == expected[1:]


def test_an_invalid_header_is_never_sent() -> None:
    """The connection ends instead, each time."""
    with _served(make_protocol(60.0, 60.0, 100)) as listener:
        for _ in range(2):
            assert _said(listener, b"GET /invalid HTTP/1.1\r\nHost: here\r\n\r\n") == b""


def test_what_is_answered_at_once_does_not_reach_the_application() -> None:
    """The application gets the other requests of the connection, before such an answer and after it."""
    marker = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nat once"

    def at_once(
        received: bytes, _general: Iterable[tuple[bytes, bytes]], write: Callable[[bytes], object]
    ) -> bool:
        if received.startswith(b"GET /marked "):
            write(marker)
            return True
        return False

    with (
        _served(make_protocol(60.0, 60.0, 100, at_once)) as listener,
        socket.create_connection(listener.getsockname(), timeout=60) as connection,
        connection.makefile("rb") as answers,
    ):
        for path in ("whole", "marked", "marked", "whole"):
            connection.sendall(f"GET /{path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
            if path == "marked":
                assert answers.read(len(marker)) == marker
                continue
            head = b"".join(iter(answers.readline, b"\r\n"))
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert answers.read(len(_BODY)) == _BODY
