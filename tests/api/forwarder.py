"""One address for a server that starts again on other ports, over a network that can be cut or stalled."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Self


class Forwarder:
    """Forwards connections to loopback's `port`; with none, connections are closed at once."""

    def __init__(self) -> None:
        self.port: int | None = None
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._flows = threading.Event()
        self._flows.set()
        self._thread = threading.Thread(target=self._accept, name="forwarder", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        self._end_all()

    @property
    def own_port(self) -> int:
        """The port on which it listens."""
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The address."""
        return f"http://127.0.0.1:{self.own_port}"

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """End all connections, and refuse others until the end."""
        port, self.port = self.port, None
        self._end_all()
        try:
            yield
        finally:
            self.port = port

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """Carry nothing until the end; connections stay open."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    def _end_all(self) -> None:
        with self._lock:
            left = list(self._open)
        for connection in left:
            _end(connection)

    def _accept(self) -> None:
        while True:
            try:
                visitor, _ = self._socket.accept()
            except OSError:
                return
            try:
                if self.port is None:
                    raise ConnectionRefusedError
                service = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                visitor.close()
                continue
            with self._lock:
                self._open |= {visitor, service}
            for source, target in ((visitor, service), (service, visitor)):
                threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                target.sendall(data)
        for each in (source, target):
            _end(each)
        with self._lock:
            if {source, target} <= self._open:
                self._open -= {source, target}
                return
        # The other direction ended before: nobody uses them any more.
        source.close()
        target.close()


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
