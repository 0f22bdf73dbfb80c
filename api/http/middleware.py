"""Wraps every request: adds its identifier and security headers, measures and logs it, and answers errors."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import ExitStack

import structlog
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pace.api.errors import QueueFull, ServiceStopping
from pace.api.fairness.loop_shares import LoopShares
from pace.api.http.answers import SOURCE_KEY, problem_response
from pace.api.http.fast_path import ROUTE_KEY
from pace.api.http.headers import (
    NOTHING_LOADED,
    SAFE_HEADERS,
    head_only,
    header,
    in_origin_form,
    rate_headers,
    refuse_two_lengths,
    request_id_of,
)
from pace.api.http.security import RATE_KEY, TENANT_KEY
from pace.api.logs import brief
from pace.api.metrics import Metrics
from pace.api.problems import headers_of, is_foreseen, problem_of
from pace.errors import PaceError

log = structlog.get_logger(__name__)

# In metrics and in the log: as reverse proxies write it.
CLIENT_GONE = 499

_NO_STORE = (b"cache-control", b"no-store")
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


# Smaller answers are bounded by the number of connections.
_COUNTED_BYTES = 2**18


class _AnswerRefused(Exception):
    """There is no room for an answer. The framework has sent its head, and would not answer a PaceError."""

    def __init__(self, reason: QueueFull) -> None:
        super().__init__()
        self.reason = reason


class Envelope:
    """ASGI middleware around the whole application.

    Parameters
    ----------
    policies
        Content security policies of pages, by path; all other answers may load nothing.
    shares
        Measures each request's share of the event loop; None for a single tenant.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        policies: Mapping[str, str],
        shares: LoopShares | None = None,
    ) -> None:
        self.app = app
        self._shares = shares
        self._policies = {
            path: (b"content-security-policy", policy.encode()) for path, policy in policies.items()
        }
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started_s = time.perf_counter()
        request_id = request_id_of(header(scope, b"x-request-id"))
        structlog.contextvars.bind_contextvars(request_id=request_id)
        status = 0
        wanted = scope
        sending = ExitStack()
        held_back: Message | None = None

        async def send_wrapped(message: Message) -> None:
            nonlocal status, held_back
            if message["type"] == "http.response.start":
                held_back = None  # what made it has failed since
                # Copied, because a response may be sent more than once.
                headers = [*message["headers"], (b"x-request-id", request_id.encode()), *SAFE_HEADERS]
                if (rate := wanted.get(RATE_KEY)) is not None:
                    headers += rate_headers(rate)
                headers.append(self._policies.get(wanted["path"], NOTHING_LOADED))
                for name, _ in headers:
                    if name == b"cache-control":
                        break
                else:
                    headers.append(_NO_STORE)
                message = {**message, "headers": headers}
                if any(n == b"content-length" and int(v) >= _COUNTED_BYTES for n, v in headers):
                    # Until it is clear that the body has room.
                    held_back = message
                    return
                status = message["status"]
            if held_back is not None:
                content = wanted.get(SOURCE_KEY) or message.get("body", b"")
                if len(content) >= _COUNTED_BYTES:
                    limits = scope["app"].state.service.body_limits
                    try:
                        sending.enter_context(limits.answer(wanted.get(TENANT_KEY, ""), content))
                    except QueueFull as error:
                        raise _AnswerRefused(error) from None
                head, held_back = held_back, None
                status = head["status"]
                await send(head)
            await send(message)

        try:
            refuse_two_lengths(scope)
            wanted = in_origin_form(scope)
            answer: Send = send_wrapped
            if scope["method"] == "HEAD":
                # Every GET route answers HEAD requests unchanged.
                wanted, answer = {**wanted, "method": "GET"}, head_only(send_wrapped)
            handled = self.app(wanted, receive, answer)
            await (handled if self._shares is None else self._shares.measure(wanted, handled))
        except asyncio.CancelledError:
            # The server cancels requests that outlast the drain, and would answer them with its own text.
            if not status:
                stopping = ServiceStopping("the service is being stopped; send the request again")
                await error_response(stopping, scope)(scope, receive, send_wrapped)
        except _AnswerRefused as refused:
            await error_response(refused.reason, scope)(scope, receive, send_wrapped)
        except PaceError as error:
            await error_response(error, scope)(scope, receive, send_wrapped)
        except ClientDisconnect:
            # The client has gone, so nobody can be answered.
            status = status or CLIENT_GONE
        except Exception as error:
            said = log.warning if is_foreseen(error) else log.exception
            said("request-failed", method=scope["method"], path=scope["path"], error=brief(error))
            if status:
                raise
            await error_response(error, scope)(scope, receive, send_wrapped)
        finally:
            sending.close()
            route = str(wanted.get(ROUTE_KEY) or getattr(wanted.get("route"), "path", "none"))
            seconds = time.perf_counter() - started_s
            # Callers may invent methods, and every label stays in memory.
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self.metrics.observe_request(method, route, status, seconds)
            # Successful reads are only counted: a log line would cost more than the read.
            if status >= 400 or scope["method"] not in ("GET", "HEAD"):
                log.info(
                    "request",
                    method=scope["method"],
                    path=scope["path"],
                    status=status,
                    seconds=round(seconds, 6),
                    client=scope["client"] and scope["client"][0],
                )


def error_response(error: Exception, scope: Scope) -> Response:
    """Return the problem document of an error, with the request's path and identifier."""
    named = {
        "instance": scope["path"],
        "request_id": structlog.contextvars.get_contextvars().get("request_id"),
    }
    return problem_response(problem_of(error).model_copy(update=named), headers_of(error))
