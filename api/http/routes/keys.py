"""Routes under /v1/keys, a tenant's API keys, for keys with the scope admin; and /v1/usage, its limits."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from pace.api.errors import InvalidRequest, NotFound
from pace.api.http.answers import document_answer
from pace.api.http.body import receive_small
from pace.api.http.openapi import json_body, problems
from pace.api.http.parameters import Cursor, Limit, RunningService
from pace.api.http.security import Admin, Reader, audit
from pace.api.storage.keys import ApiKey
from pace.api.storage.quota import read_usage
from pace.client.page_documents import (
    CreatedKey,
    KeyId,
    KeyPage,
    KeyRequest,
    KeyResource,
    KeyScope,
    UsageResource,
)
from pace.version import __version__

router = APIRouter(prefix="/v1", tags=["Keys and usage"])

_EXAMPLE = {"name": "team vision", "scopes": ["read", "submit"], "expires_at": "2027-01-01T00:00:00Z"}
_SCOPES: tuple[KeyScope, ...] = ("read", "submit", "admin")


@router.post(
    "/keys",
    summary="Create an API key",
    status_code=201,
    responses={
        201: {
            "model": CreatedKey,
            "description": "The key with its token, which is shown only in this answer",
        },
        **problems(401, 403, 408, 413, 415, 422, 429, 503, 507),
    },
    openapi_extra=json_body(KeyRequest, _EXAMPLE),
)
async def create_key(request: Request, service: RunningService, principal: Admin) -> Response:
    """Create a key of the caller's tenant. The token is in this answer only."""
    asked = await receive_small(request, KeyRequest)
    if asked.expires_at is not None and asked.expires_at <= datetime.now(UTC):
        raise InvalidRequest("expires_at: expected a time in the future")
    token = await service.in_database(
        service.keys.create, principal.tenant, asked.name, asked.scopes, expires_at=asked.expires_at
    )
    key = await service.in_database(service.keys.find, token.split("_")[1])
    if key is None:
        raise NotFound("the key was revoked while it was created")
    audit("key-created", principal, new_key=key.id, scopes=" ".join(sorted(key.scopes)))
    created = CreatedKey(token=token, **key_resource(key).model_dump())
    return document_answer(created).response(201, {"Cache-Control": "no-store"})


@router.get("/keys", summary="List API keys", response_model=KeyPage, responses=problems(401, 403, 422, 429))
async def list_keys(
    request: Request, service: RunningService, principal: Admin, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """List the tenant's keys, newest first, including revoked and expired ones."""
    keys, following = await service.in_database(service.keys.page, principal.tenant, limit, cursor)
    return document_answer(KeyPage(items=tuple(map(key_resource, keys)), next=following)).response_to(request)


@router.delete(
    "/keys/{key_id}",
    summary="Revoke an API key",
    status_code=204,
    responses=problems(401, 403, 404, 422, 429),
)
async def revoke_key(
    service: RunningService,
    principal: Admin,
    key_id: Annotated[KeyId, Path(description="Identifier of the key")],
) -> None:
    """Make a key invalid: at once in this service process, within five seconds in others."""
    if not await service.in_database(service.keys.revoke, key_id, principal.tenant):
        raise NotFound(f'there is no valid key "{key_id}"')
    service.access.forget(key_id)
    audit("key-revoked", principal, revoked_key=key_id)


def key_resource(key: ApiKey) -> KeyResource:
    """Return the document of a key."""
    return KeyResource(
        id=key.id,
        name=key.name,
        scopes=tuple(scope for scope in _SCOPES if scope in key.scopes),
        created_at=key.created_at,
        expires_at=key.expires_at,
        last_used_at=key.last_used_at,
        revoked_at=key.revoked_at,
    )


@router.get(
    "/usage",
    summary="Get usage and limits",
    response_model=UsageResource,
    responses=problems(401, 403, 429, 503),
)
async def get_usage(service: RunningService, principal: Reader) -> Response:
    """Return the tenant's stored bytes, tasks and limits, and the scopes of the caller's key."""
    usage = await service.in_database(read_usage, service.database, principal.tenant)
    limits = service.settings.tenants.limits(principal.tenant)
    return document_answer(
        UsageResource(
            tenant=principal.tenant,
            scopes=tuple(scope for scope in _SCOPES if scope in principal.scopes),
            key_id=principal.key_id,
            subject=principal.subject,
            stored_bytes=usage.stored_bytes,
            max_stored_bytes=limits.max_stored_bytes,
            num_queued=usage.num_queued,
            max_queued=limits.max_queued,
            num_running=usage.num_running,
            max_running=limits.max_running,
            max_body_bytes=service.settings.max_body_bytes,
            version=__version__,
        )
    ).response()
