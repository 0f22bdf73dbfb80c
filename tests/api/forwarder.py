"""One address for a service that is started again on other ports: what a visitor's browser keeps asking."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class Forwarder:
    """Forwards connections to loopback's `port`; with none, connections are closed at once."""

    def __init__(self) -> None:
        self.port: int | None = None
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, name="forwarder", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        with self._lock:
            left = list(self._open)
        for connection in left:
            _end(connection)

    @property
    def url(self) -> str:
        """The address."""
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

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
