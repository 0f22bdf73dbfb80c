"""Servers in a test's own process: one that answers whatever the test wants, and a proxy with a path."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.api.process import Caller, new_client


class Asked(BaseHTTPRequestHandler):
    """A request, with its body if it has one."""

    body = b""


Answer = Callable[[Asked], None]


@contextmanager
def answering(answer: Answer, certificates: tuple[Path, Path] | None = None) -> Iterator[str]:
    """Answer all requests by a function while the context lasts; yields the address.

    With a certificate and its key, over TLS.
    """

    class Handler(Asked):
        def do_GET(self) -> None:
            answer(self)

        def do_POST(self) -> None:
            self.body = self.rfile.read(int(self.headers["Content-Length"]))
            answer(self)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificates)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    scheme = "http" if certificates is None else "https"
    try:
        yield f"{scheme}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def behind_a_path(service: Caller, asked: list[str] | None = None) -> Iterator[str]:
    """Serve a service below ``/pace/`` of another address, as a proxy may; yields its address there.

    The paths of all requests are added to `asked`.
    """

    def forward(request: Asked) -> None:
        if asked is not None:
            asked.append(request.path)
        if not request.path.startswith("/pace/"):
            send(request, 404, b"")
            return
        path, headers = request.path.removeprefix("/pace"), dict(request.headers)
        with new_client() as client:
            answer = client.request(
                request.command, service.url + path, content=request.body, headers=headers
            )
        named = {
            name: answer.headers[name] for name in ("content-type", "location") if name in answer.headers
        }
        send(request, answer.status_code, answer.content, **named)

    with answering(forward) as url:
        yield f"{url}/pace"


def send(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    """Answer one request; underscores in names of headers stand for hyphens."""
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)
