"""Authentication of requests by the API key or the issuer's token in the Authorization header."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from pace.api.access import Principal
from pace.api.errors import Forbidden, RateLimited, Unauthorized
from pace.api.fairness.loop_shares import LoopShares
from pace.api.http.audit import audit, audit_denial
from pace.api.service import Service
from pace.api.storage.keys import Scope

# Prefix of addresses that take the place of a tenant; no tenant's name begins with it.
_ADDRESS = "\0"
# Key in a request's scope under which the rest of the tenant's rate limit is kept for the answer.
RATE_KEY = "pace.rate"
# Key in a request's scope of the tenant that sent it.
TENANT_KEY = "pace.tenant"

_bearer = HTTPBearer(
    auto_error=False,
    description="An API key, created with `pace keys create` or POST /v1/keys, or a token of the OpenID "
    "Connect issuer",
)


async def admit_request(request: Request, service: Service, token: str | None, scope: Scope) -> Principal:
    """Return the principal of a request, as ``AccessControl.admit`` does, and write the audit log."""
    audits = service.settings.audit == "all"
    shares: LoopShares | None = request.app.state.loop_shares
    address = request.scope["client"]
    client = address[0] if address else ""
    try:
        principal, request.scope[RATE_KEY] = await service.access.admit(token, scope, client)
    except (Unauthorized, Forbidden, RateLimited) as error:
        if audits:
            audit_denial(request.method, request.url.path, client, str(error))
        if shares is not None:
            # Refusing a request takes time of the event loop, too.
            await shares.turn(request.scope, f"{_ADDRESS}{client}")
        raise
    request.scope[TENANT_KEY] = principal.tenant
    if shares is not None:
        await shares.turn(request.scope, principal.tenant)
    if audits and request.method in ("GET", "HEAD"):
        audit("read", principal, path=request.url.path)
    return principal


def _admit(scope: Scope) -> Callable[..., Awaitable[Principal]]:
    async def admit(
        request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
    ) -> Principal:
        token = None if credentials is None else credentials.credentials
        return await admit_request(request, request.app.state.service, token, scope)

    return admit


Reader = Annotated[Principal, Depends(_admit("read"))]
Submitter = Annotated[Principal, Depends(_admit("submit"))]
Admin = Annotated[Principal, Depends(_admit("admin"))]
