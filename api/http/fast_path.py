"""Fast paths for the most frequent requests: GET /v1/schedules/{question_id} and POST /v1/schedules.

With thousands of workers, FastAPI's middleware, routing and parsing of parameters cost more than all other
work together. The same functions answer here and in ``routes.questions``, whose routes describe them in
OpenAPI, refuse invalid identifiers, and answer if requests are traced.

A schedule that is in memory is answered as soon as its request has arrived, without a coroutine.
"""

import re
import time
from collections.abc import Callable, Iterable
from typing import cast

import structlog
from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pace.api.fairness.loop_shares import LoopShares
from pace.api.http.headers import (
    NOTHING_LOADED,
    SAFE_HEADERS,
    bearer_of,
    header,
    header_lines,
    rate_headers,
    request_id_of,
)
from pace.api.http.hosts import HostCheck
from pace.api.http.question_answers import QuestionAnswers
from pace.api.http.routes.questions import create_question, get_question
from pace.api.http.security import admit_request
from pace.api.questions.all_kinds import KINDS
from pace.api.questions.kind import SCHEDULE
from pace.api.service import Service

_KIND = KINDS[SCHEDULE]
_PATH = _KIND.path
_ID = re.compile("[0-9a-f]{32}")
_ONE = f"{_PATH}/{{question_id}}"
log = structlog.get_logger(__name__)
ROUTE_KEY = "pace.route"
# One request without a body, all of it, as RFC 9112 writes it and most clients do.
_PLAIN = re.compile(
    b"GET " + re.escape(_PATH).encode() + rb"/([0-9a-f]{32}) HTTP/1\.1\r\n"
    rb"((?:[-!#$%&'*+.^_`|~0-9A-Za-z]+:[\t -~]*\r\n)+)\r\n"
)
_MOST_BYTES = 4096
# Larger answers are sent in pieces, as fast as their client reads them.
_MOST_ANSWER_BYTES = 2**15
# Headers that say where a request ends, or on which its answer depends.
_DECISIVE = frozenset(("content-length", "transfer-encoding", "expect", "upgrade", "origin", "if-none-match"))
_KEEPS = "keep-alive"
_SAFE_LINES = header_lines(SAFE_HEADERS)
_LAST_LINES = header_lines([NOTHING_LOADED]) + b"\r\n"
# They are asked again and again while nobody uses the service.
_PROBES = frozenset(("/healthz", "/readyz", "/metrics"))


class Application(FastAPI):
    """The FastAPI application with a fast path around it.

    Attributes
    ----------
    fast
        Answers the requests for which ``is_frequent`` holds; None leaves them to FastAPI.
    reads
        Answers reads before they get here; None leaves them to `fast`.
    """

    fast: ASGIApp | None = None
    reads: "ReadsFromMemory | None" = None

    def answer_at_once(
        self, received: bytes, general: Iterable[tuple[bytes, bytes]], write: Callable[[bytes], object]
    ) -> bool:
        """Answer a request as ``ReadsFromMemory.answer`` does, if these reads are wanted."""
        return self.reads is not None and self.reads.answer(received, general, write)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, or the start and end of the server."""
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, self._without_traceback(send))
            return
        if scope["path"] not in _PROBES:
            service: Service = self.state.service
            service.pools.start()
        if self.fast is not None and is_frequent(scope):
            scope["app"] = self
            await self.fast(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def note_slow_reader(self, client: str | None) -> None:
        """Log and count a connection that ends because its client does not read."""
        service: Service = self.state.service
        service.metrics.slow_readers.inc()
        log.info("slow-reader-ended", client=client)

    def _without_traceback(self, send: Send) -> Send:
        # Otherwise the server would log a traceback, though the log already has the reason.
        async def send_status(message: Message) -> None:
            service = cast("Service | None", getattr(self.state, "service", None))
            if service is not None and service.failure is not None:
                message.pop("message", None)
            await send(message)

        return send_status


def is_frequent(scope: Scope) -> bool:
    """Whether a request is one that ``answer_frequent`` answers."""
    # Only the routes refuse query parameters.
    if scope["type"] != "http" or scope["query_string"] or not scope["path"].startswith(_PATH):
        return False
    rest = scope["path"][len(_PATH) :]
    if scope["method"] == "GET":
        return rest[:1] == "/" and _ID.fullmatch(rest, 1) is not None
    return scope["method"] == "POST" and not rest


async def answer_frequent(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a GET of a schedule or a POST of a profile; an ASGI application."""
    request = Request(scope, receive)
    state = scope["app"].state
    service = cast("Service", state.service)
    given = bearer_of(header(scope, b"authorization"))
    if scope["method"] == "GET":
        scope[ROUTE_KEY] = _ONE
        principal = await admit_request(request, service, given, "read")
        question_id = scope["path"][len(_PATH) + 1 :]
        response = await get_question(_KIND, request, state.question_answers, principal, question_id)
    else:
        scope[ROUTE_KEY] = _PATH
        principal = await admit_request(request, service, given, "submit")
        response = await create_question(_KIND, request, service, state.question_answers, principal)
    await response(scope, receive, send)


class ReadsFromMemory:
    """Answers a GET of a schedule that is in memory, with the limits, metrics and headers of any request.

    Other requests go to the application, which counts them, too: for a schedule that is not in memory, those
    that must wait, and those to refuse. So do requests that are not in the plainest form, which only the
    server's parser can read.
    """

    def __init__(
        self, service: Service, answers: QuestionAnswers, hosts: HostCheck, shares: LoopShares | None
    ) -> None:
        self._service = service
        self._answers = answers
        self._hosts = hosts
        self._shares = shares

    def answer(
        self, received: bytes, general: Iterable[tuple[bytes, bytes]], write: Callable[[bytes], object]
    ) -> bool:
        """Write the answer to what arrived on an idle connection, or return False and do nothing.

        Parameters
        ----------
        general
            Headers that the server adds to each answer.
        """
        began_s = time.perf_counter()
        request = _PLAIN.fullmatch(received) if len(received) <= _MOST_BYTES else None
        given = None if request is None else _plain_headers(request[2])
        if request is None or given is None or not self._hosts.allows(given["host"]):
            return False
        access, shares = self._service.access, self._shares
        principal = access.recognize(bearer_of(given.get("authorization")), "read")
        if principal is None or (shares is not None and not shares.is_open(principal.tenant)):
            return False
        question_id = request[1].decode()
        answer = self._answers.in_memory(principal.tenant, _KIND, question_id, _MOST_ANSWER_BYTES)
        if answer is None:
            return False
        rate = access.count(principal.tenant)
        request_id = request_id_of(given.get("x-request-id"))
        parts = [b"HTTP/1.1 200 OK\r\n", header_lines(general), answer.lines]
        parts += [b"x-request-id: %s\r\n" % request_id.encode(), _SAFE_LINES]
        if rate is not None:
            parts.append(header_lines(rate_headers(rate)))
        parts += [_LAST_LINES, answer.body]
        write(b"".join(parts))
        seconds = time.perf_counter() - began_s
        self._service.metrics.observe_request("GET", _ONE, 200, seconds)
        if shares is not None:
            shares.charge(principal.tenant, seconds)
        return True


def _plain_headers(lines: bytes) -> dict[str, str] | None:
    """Return headers by names in lower case; None if one is decisive or repeated, or there is no host."""
    found: dict[str, str] = {}
    for line in lines.decode("ascii").split("\r\n")[:-1]:
        name, _, value = line.partition(":")
        name = name.lower()
        if name in found:
            return None
        found[name] = value.strip(" \t")
    if found.pop("connection", _KEEPS).lower() != _KEEPS or "host" not in found:
        return None
    return found if _DECISIVE.isdisjoint(found) else None
