"""How routes find out who asks: the API key in the Authorization header."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from pace.api.access import AccessControl, Principal
from pace.api.storage.keys import Scope

_bearer = HTTPBearer(auto_error=False, description="An API key, made by `pace keys create`")


def _admit(scope: Scope) -> Callable[..., Awaitable[Principal]]:
    async def admit(
        request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
    ) -> Principal:
        access: AccessControl = request.app.state.service.access
        return await access.admit(None if credentials is None else credentials.credentials, scope)

    return admit


Reader = Annotated[Principal, Depends(_admit("read"))]
Submitter = Annotated[Principal, Depends(_admit("submit"))]
Admin = Annotated[Principal, Depends(_admit("admin"))]
