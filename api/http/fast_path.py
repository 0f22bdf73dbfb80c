"""A short way for the most frequent request, GET /v1/schedules/{schedule_id}.

When thousands of workers ask for the same bytes, the framework's routing and parameters cost more than
everything else together. The same function answers here and in ``routes.schedules``, whose route describes it
to the documentation and refuses what is no id.
"""

import re
from typing import cast

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from pace.api.http.routes.schedules import answer_schedule
from pace.api.http.security import admit_request
from pace.api.service import Service

_PATH = re.compile("/v1/schedules/([0-9a-f]{32})")
ROUTE_KEY = "pace.route"


class FastPath:
    """ASGI middleware around the routes."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a GET of a schedule, hand on everything else."""
        match = _PATH.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if match is None or scope["method"] != "GET":
            await self.app(scope, receive, send)
            return
        scope[ROUTE_KEY] = "/v1/schedules/{schedule_id}"
        request = Request(scope)
        state = scope["app"].state
        service = cast("Service", state.service)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else None
        principal = await admit_request(request, service, given, "read")
        response = await answer_schedule(request, state.schedule_answers, principal, match[1])
        await response(scope, receive, send)
