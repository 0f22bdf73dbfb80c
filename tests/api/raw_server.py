"""A server on loopback that sends what a test wants, also what no HTTP server would."""

import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socket import socket

Answer = Callable[[bytes, socket], None]


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """Yield the address of a server that answers each connection; `answer` is given the request."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):  # the other side hung up
                answer(self.request.recv(65536), self.request)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def drip(_request: bytes, connection: socket) -> None:
    """Begin a good answer, and never end it: a byte comes in time for any limit on one read."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.05)


def drip_headers(_request: bytes, connection: socket) -> None:
    """Begin an answer whose headers do not end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"X: 1\r\n")
        time.sleep(0.05)
