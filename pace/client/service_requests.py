"""Requests to the service, repeated until they are answered, and tasks, followed until they end."""

import base64
import contextlib
import hashlib
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

import httpx
import tenacity
from pydantic import BaseModel, ValidationError

from pace.client.address import refuse_other_address
from pace.client.documents import Health, Problem, TaskResource
from pace.documents.base import explain
from pace.errors import (
    AccessDenied,
    InvalidDocument,
    InvalidOptions,
    InvalidUse,
    PaceError,
    RequestRefused,
    ServiceUnavailable,
)
from pace.version import __version__


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


_RETRIED_STATUSES = (429, 502, 503, 504)

# Far more than the schedule of any model, or any what-if grid, takes.
MOST_BYTES = 64 << 20

# Sockets take no more than 2^31 ms.
LONGEST_TIMEOUT_S = 2_000_000

_RELEASE_TIMEOUT_S = 2.0
# This side has checked what it sends: a field that the other does not know, or lacks, is of other code.
_OTHER_FIELDS = ("Extra inputs are not permitted", "Field required")

D = TypeVar("D", bound=BaseModel)
_backoff = tenacity.wait_random_exponential(multiplier=0.1, max=2)


class ServiceRequests:
    """A connection to the service. ``pace.client.Client`` adds the questions and explains the parameters."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        timeout_s: float = 10.0,
        *,
        ca_file: str | Path | None = None,
    ) -> None:
        refuse_other_address("url", url, key="api_key")
        if (
            isinstance(timeout_s, bool)
            or not isinstance(timeout_s, int | float)
            or not (0 < timeout_s <= LONGEST_TIMEOUT_S)
        ):
            raise InvalidOptions(
                f"timeout_s is {timeout_s!r}: expected a positive number of seconds, at most"
                f" {LONGEST_TIMEOUT_S:,}"
            )
        if not isinstance(api_key, str | None):  # not shown, as it may be a key
            raise InvalidOptions(f"api_key is of type {type(api_key).__name__}: expected text, or None")
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        headers = {"Accept": "application/json"}
        key = (api_key or "").strip()  # what a file or a variable holds often ends with a newline
        if not (key.isascii() and key.isprintable()):
            raise ServiceUnavailable(
                "the API key has a character that no key has, such as a line break: pass it as it was issued"
            )
        if key:
            headers["Authorization"] = f"Bearer {key}"
        try:
            # Proxies of the environment are not for a service of one's own cluster; certificates are.
            self._http = httpx.Client(
                base_url=self.url,
                headers=headers,
                trust_env=False,
                verify=certificates(ca_file),
                limits=httpx.Limits(max_keepalive_connections=0),  # see `HttpRequest`
            )
        except httpx.InvalidURL as error:
            raise InvalidOptions(f"url is {url!r}, which is not a URL: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _ask(
        self,
        path: str,
        request: dict[str, Any],
        resource: type[D],
        progress: Callable[[int], None] | None = None,
        *,
        waits: bool = False,
    ) -> D:
        """Send a question and return the answer's resource; if the service answers with a task, follow it."""
        deadline = self._deadline()
        headers = {} if waits else {"Prefer": "respond-async"}
        answer = self._request(deadline, "POST", path, waits=waits, json=request, headers=headers)
        if answer.status == 202:
            answer = self._follow(self._parse(answer, TaskResource), deadline, progress)
        return self._parse(answer, resource)

    def _follow(
        self, task: TaskResource, deadline: float, progress: Callable[[int], None] | None = None
    ) -> HttpAnswer:
        told = 0
        pause_s = 0.05
        while True:
            if progress is not None and (task.num_done or 0) > told:
                progress((task.num_done or 0) - told)
                told = task.num_done or 0
            if task.state not in ("queued", "running"):
                break
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise ServiceUnavailable(
                    f"{self.url}: task {task.id} is still {task.state} after {self.timeout_s:g} s"
                )
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, 0.5)
            task = self._parse(self._request(deadline, "GET", f"/v1/tasks/{task.id}"), TaskResource)
        if task.problem is not None:
            raise error_of(task.problem, self.url)
        return self._request(deadline, "GET", task.location or "")

    def _deadline(self) -> float:
        return time.monotonic() + self.timeout_s

    def _request(
        self, deadline: float, method: str, path: str, *, waits: bool = False, **arguments: Any
    ) -> HttpAnswer:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((httpx.TransportError, _TryAgain))
            & tenacity.retry_if_not_exception_type(httpx.UnsupportedProtocol),
            wait=_pause_s,
            stop=tenacity.stop_before_delay(max(deadline - time.monotonic(), 0.0)),
            reraise=True,
        )
        try:
            return retrying(self._send, deadline, method, path, waits=waits, **arguments)
        except httpx.HTTPError as error:
            what = str(error) or type(error).__name__
            raise ServiceUnavailable(f"{self.url} cannot be reached: {what}") from error

    def _send(
        self, deadline: float, method: str, path: str, *, waits: bool = False, **arguments: Any
    ) -> HttpAnswer:
        if waits:
            # At most half of what is left: a result that takes longer is then followed as a task.
            half_s = max(0, int((deadline - time.monotonic()) / 2))
            arguments["headers"] = {"Prefer": f"wait={half_s}"}
        if self._http.is_closed:
            raise InvalidUse("the client is closed: make a new one")
        answer = HttpRequest(self._http, most_bytes=MOST_BYTES).run(deadline, method, path, **arguments)
        if answer.status in _RETRIED_STATUSES:
            detail = f"{self.url} answered {answer.status}: {detail_of(answer.body)}"
            raise _TryAgain(detail, answer.retry_after_s)
        return answer

    def _parse(self, answer: HttpAnswer, document: type[D]) -> D:
        if answer.status >= 300:
            try:
                problem = Problem.model_validate_json(answer.body)
            except ValidationError:
                self._nonsense(f"status {answer.status}")
            refusal = problem.detail
            if answer.status in (404, 405, 422):  # the service may not know a path or a field yet
                problem = problem.model_copy(update={"detail": self._with_releases(refusal)})
            error = error_of(problem, self.url)
            if isinstance(error, RequestRefused) and problem.detail != refusal:
                error = ServiceUnavailable(f"{self.url} refuses the request: {problem.detail}")
            raise error
        if not answer.has_its_digest:
            self._nonsense("a body that does not have its digest")
        try:
            # A newer service may send fields that this release does not know.
            return document.model_validate_json(answer.body, strict=True, extra="ignore")
        except ValidationError as error:
            self._nonsense(explain(error))

    def _with_releases(self, refusal: str) -> str:
        """Add that the service is of another release, and what to do, to what one of the two refuses."""
        try:
            answer = self._send(time.monotonic() + _RELEASE_TIMEOUT_S, "GET", "/healthz")
            theirs = Health.model_validate_json(answer.body, extra="ignore").version
        except (httpx.HTTPError, ServiceUnavailable, ValidationError):
            return refusal
        if theirs == __version__ and not any(words in refusal for words in _OTHER_FIELDS):
            return refusal
        line = "; ".join(refusal.splitlines())
        ours = __version__ if theirs != __version__ else f"{__version__} of another commit"
        return f"{line} (the service has PACE {theirs}, this is {ours}: install the same on both)"

    def _nonsense(self, what: str) -> NoReturn:
        raise ServiceUnavailable(f"{self.url} sent a wrong answer: {self._with_releases(what)}")


class _TryAgain(ServiceUnavailable):
    """The service cannot answer now, but may after a delay.

    Attributes
    ----------
    after_s
        The delay in seconds that the service asks for.
    """

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


def _pause_s(state: tenacity.RetryCallState) -> float:
    """Return the seconds to wait before the next attempt: a random time, and what the service asks for."""
    error = None if state.outcome is None else state.outcome.exception()
    return _backoff(state) + (error.after_s if isinstance(error, _TryAgain) else 0.0)


def error_of(problem: Problem, url: str) -> PaceError:
    """Return the error of a problem that the service at a URL answered with."""
    # By the last word of the type. What else goes wrong is the service's fault.
    name = problem.type.rpartition(":")[2]
    if name == "invalid-options":
        return InvalidOptions(problem.detail)
    if name in InvalidDocument.by_problem:
        return InvalidDocument.by_problem[name](problem.detail)
    if problem.status in (401, 403):
        remedy = "give api_key, or set PACE_API_KEY" if problem.status == 401 else "use another API key"
        return AccessDenied(f"{url} answered {problem.status} {problem.title}: {problem.detail} ({remedy})")
    if problem.status in (413, 422) or name == "not-found":
        return RequestRefused(problem.detail)
    return ServiceUnavailable(f"{url} answered {problem.status} {problem.title}: {problem.detail}")


def problem_of(body: bytes) -> str | None:
    """Return the last word of a problem's type, or None when a body is no problem document."""
    try:
        return Problem.model_validate_json(body).type.rpartition(":")[2]
    except ValidationError:
        return None


def detail_of(body: bytes) -> str:
    """Return what a body says is wrong: a problem's detail, or else its first 200 bytes."""
    try:
        return Problem.model_validate_json(body).detail
    except ValidationError:
        return body[:200].decode(errors="replace")
