"""Answers that are written before a request is parsed, between others on the same connection."""

import socket
import threading
import time
from asyncio import Protocol
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import Receive, Scope, Send

from pace.api.http.server import make_protocol

_BODY = b"some text"


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    del scope, receive
    headers = [(b"Content-Length", b"%d" % len(_BODY))]
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
