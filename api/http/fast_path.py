"""A fast path for the most frequent requests: GET /v1/schedules/{question_id} and POST /v1/schedules.

With thousands of workers, the framework's layers, routing and parameters cost more than everything else
together. The same functions answer here and in ``routes.questions``, whose routes describe them in OpenAPI,
refuse invalid identifiers, and answer if requests are traced.
"""

import re
from typing import cast

from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pace.api.http.headers import header
from pace.api.http.routes.questions import create_question, get_question
from pace.api.http.security import admit_request
from pace.api.questions.kind import SCHEDULE
from pace.api.questions.registry import KINDS
from pace.api.service import Service

_KIND = KINDS[SCHEDULE]
_PATH = _KIND.path
_ID = re.compile("[0-9a-f]{32}")
ROUTE_KEY = "pace.route"
# They are asked again and again while nobody uses the service.
_PROBES = frozenset(("/healthz", "/readyz", "/metrics"))


class Application(FastAPI):
    """The FastAPI application with a fast path around it.

    Attributes
    ----------
    fast
        Answers the requests for which ``is_frequent`` holds; None leaves them to FastAPI.
    """

    fast: ASGIApp | None = None

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
    if scope["type"] != "http" or not scope["path"].startswith(_PATH):
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
    scheme, _, token = (header(scope, b"authorization") or "").partition(" ")
    given = token.strip() if scheme.lower() == "bearer" else None
    if scope["method"] == "GET":
        scope[ROUTE_KEY] = f"{_PATH}/{{question_id}}"
        principal = await admit_request(request, service, given, "read")
        question_id = scope["path"][len(_PATH) + 1 :]
        response = await get_question(_KIND, request, state.question_answers, principal, question_id)
    else:
        scope[ROUTE_KEY] = _PATH
        principal = await admit_request(request, service, given, "submit")
        response = await create_question(_KIND, request, service, state.question_answers, principal)
    await response(scope, receive, send)
