"""Authenticates requests by the API key or token in their Authorization header, and writes the audit log."""

from collections.abc import Awaitable, Callable
from typing import Annotated

import structlog
from fastapi import Depends, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import ParamTypes
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from pace.api.access import Principal
from pace.api.errors import Forbidden, InvalidRequest, RateLimited, Unauthorized
from pace.api.fairness.loop_shares import LoopShares
from pace.api.service import Service
from pace.api.storage.keys import Scope

# One line for every write, in the service's log under this name.
_audited = structlog.get_logger("pace.audit")
# Prefix of addresses that take the place of a tenant; no tenant's name begins with it.
_ADDRESS = "\0"
# Key in a request's scope under which the rest of the tenant's rate limit is kept for the answer.
RATE_KEY = "pace.rate"
# Fields of a model of parameters do not say where they are sent; all models here are of queries.
_OF_A_MODEL = ParamTypes.query
# Key in a request's scope of the tenant that sent it.
TENANT_KEY = "pace.tenant"

_bearer = HTTPBearer(
    auto_error=False,
    description="An API key, created with `pace keys create` or POST /v1/keys, or a token of the OpenID "
    "Connect issuer",
)


def audit(action: str, principal: Principal, **subject: str) -> None:
    """Write an audit line: who did what to which resource. The log adds the request's identifier."""
    if principal.subject is not None:
        subject["subject"] = principal.subject
    _audited.info(action, tenant=principal.tenant, key=principal.key_id, **subject)


async def admit_request(
    request: Request,
    service: Service,
    token: str | None,
    scope: Scope,
    is_repeat: Callable[[str], Awaitable[bool]] | None = None,
) -> Principal:
    """Return the principal of a request, as ``AccessControl.admit`` does, and write the audit log."""
    audits = service.settings.audit == "all"
    shares: LoopShares | None = request.app.state.loop_shares
    address = request.scope["client"]
    client = address[0] if address else ""
    try:
        principal, request.scope[RATE_KEY] = await service.access.admit(token, scope, client, is_repeat)
    except (Unauthorized, Forbidden, RateLimited) as error:
        if audits:
            said = {"method": request.method, "path": request.url.path, "client": client}
            _audited.info("denied", **said, reason=str(error))
        if shares is not None:
            # Refusing a request takes time of the event loop, too.
            await shares.turn(request.scope, f"{_ADDRESS}{client}")
        raise
    request.scope[TENANT_KEY] = principal.tenant
    if shares is not None:
        await shares.turn(request.scope, principal.tenant)
    if audits and request.method in ("GET", "HEAD"):
        audit("read", principal, path=request.url.path)
    if request.scope["query_string"]:
        _refuse_unknown_parameters(request)
    return principal


def _refuse_unknown_parameters(request: Request) -> None:
    """Refuse what would be ignored: a misspelled filter would give all rows."""
    fields = get_flat_params(request.scope["route"].dependant)
    known = sorted(
        field.alias for field in fields if getattr(field.field_info, "in_", _OF_A_MODEL) is ParamTypes.query
    )
    for name in request.query_params:
        if name not in known:
            raise InvalidRequest(
                f'unknown query parameter "{name[:100]}"; this route takes {", ".join(known) or "none"}'
            )


def _admit(scope: Scope) -> Callable[..., Awaitable[Principal]]:
    async def admit(
        request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
    ) -> Principal:
        token = None if credentials is None else credentials.credentials
        return await admit_request(request, request.app.state.service, token, scope)

    return admit


async def _admit_report(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Principal:
    service: Service = request.app.state.service

    async def is_repeat(tenant: str) -> bool:
        key = request.headers.get("idempotency-key")
        return key is not None and await service.in_database(service.store.has_report, tenant, key)

    token = None if credentials is None else credentials.credentials
    return await admit_request(request, service, token, "submit", is_repeat)


Reader = Annotated[Principal, Depends(_admit("read"))]
Submitter = Annotated[Principal, Depends(_admit("submit"))]
Reporter = Annotated[Principal, Depends(_admit_report)]
Admin = Annotated[Principal, Depends(_admit("admin"))]
