"""One HTTP request and its answer, with limits on the total time and on the bytes."""

import base64
import contextlib
import hashlib
import queue
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx

from pace.errors import ServiceUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """A complete answer."""

    status: int
    headers: httpx.Headers
    body: bytes

    @property
    def has_its_digest(self) -> bool:
        """Whether the body is what ``Content-Digest`` says; True without one."""
        digest = base64.b64encode(hashlib.sha256(self.body).digest()).decode()
        return self.headers.get("Content-Digest") in (None, f"sha-256=:{digest}:")

    @property
    def retry_after_s(self) -> float:
        """Seconds to wait before the next request, from ``Retry-After``; 0 without a valid one."""
        given = self.headers.get("Retry-After", "").strip()
        if given.isdecimal():
            return float(given[:9])
        try:
            return max(0.0, parsedate_to_datetime(given).timestamp() - time.time())
        except (ValueError, OverflowError):
            return 0.0


class HttpRequest:
    """Sends a request from its own thread, so that nothing in it outlasts the deadline.

    httpx's time-outs apply to each read, and not to name look-ups: a service that sends single bytes slowly
    would never time out.

    Parameters
    ----------
    http
        A client that keeps no connections, so that the request's connection is known.
    most_bytes
        Largest answer in bytes.
    """

    def __init__(self, http: httpx.Client, *, most_bytes: int) -> None:
        self._http = http
        self._most_bytes = most_bytes
        self._streams: list[Any] = []
        self._given_up = False

    def run(self, deadline: float, method: str, path: str, **arguments: Any) -> HttpAnswer:
        """Send the request and return the answer; call it once for each instance.

        Parameters
        ----------
        deadline
            Point in time on the clock of ``time.monotonic``.

        Raises
        ------
        httpx.HTTPError
            If the service was not reached, or did not answer in time.
        ServiceUnavailable
            If the answer is too long.
        """
        ended: queue.SimpleQueue[HttpAnswer | Exception] = queue.SimpleQueue()

        def work() -> None:
            try:
                ended.put(self._send(deadline, method, path, arguments))
            except Exception as error:  # raised in the calling thread
                ended.put(error)

        threading.Thread(target=work, name="pace.request", daemon=True).start()
        try:
            found = ended.get(timeout=max(deadline - time.monotonic(), 0.001))
        except queue.Empty:
            raise httpx.ReadTimeout("no whole answer in time") from None
        finally:
            self._cut()
        if isinstance(found, Exception):
            raise found
        return found

    def _send(self, deadline: float, method: str, path: str, arguments: dict[str, Any]) -> HttpAnswer:
        left_s = max(deadline - time.monotonic(), 0.001)
        extensions = {"trace": self._note_connection}
        with self._http.stream(method, path, timeout=left_s, extensions=extensions, **arguments) as answer:
            body = bytearray()
            for chunk in answer.iter_bytes():
                body += chunk
                if len(body) > self._most_bytes:
                    raise ServiceUnavailable(
                        f"{self._http.base_url} answered with more than {self._most_bytes} bytes"
                    )
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("no whole answer in time")
        return HttpAnswer(status=answer.status_code, headers=answer.headers, body=bytes(body))

    def _note_connection(self, event: str, info: dict[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._streams.append(info["return_value"])
            if self._given_up:
                self._cut()

    def _cut(self) -> None:
        """Unblock the thread: every call on a socket that was shut down returns."""
        self._given_up = True
        for stream in self._streams:
            connection: socket.socket | None = stream.get_extra_info("socket")
            if connection is not None:
                with contextlib.suppress(OSError):  # closed already
                    connection.shutdown(socket.SHUT_RDWR)


def certificates(ca_file: str | Path | None) -> ssl.SSLContext:
    """Return a context that trusts the certificates of a file; without one, those of the system.

    Raises
    ------
    ServiceUnavailable
        If they cannot be read.
    """
    try:
        return httpx.create_ssl_context() if ca_file is None else ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        where = "named by SSL_CERT_FILE or SSL_CERT_DIR" if ca_file is None else f"in {ca_file}"
        raise ServiceUnavailable(f"the certificates {where} cannot be read: {error}") from None
