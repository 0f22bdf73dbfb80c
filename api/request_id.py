"""Gives every request an id: the caller's own, or a new one; logged, and sent back."""

import re
import uuid

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-ID"


class RequestId:
    """ASGI middleware that binds the request's id to the log's context."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = Headers(scope=scope).get(HEADER, "")
        # What the caller chose goes into logs and headers: nothing that could forge either.
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", request_id):
            request_id = uuid.uuid4().hex
        structlog.contextvars.bind_contextvars(request_id=request_id)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self.app(scope, receive, send_with_id)


def current_request_id() -> str | None:
    """Return the id of the request that is being answered."""
    return structlog.contextvars.get_contextvars().get("request_id")
