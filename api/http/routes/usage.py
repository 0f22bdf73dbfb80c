"""The route /v1/usage: the caller, its scopes, and the tenant's usage and limits."""

from fastapi import APIRouter
from starlette.responses import Response

from pace.api.http.answers import document_answer
from pace.api.http.openapi import problems
from pace.api.http.parameters import RunningService
from pace.api.http.security import Reader
from pace.api.storage.quota import read_usage
from pace.client.page_documents import KeyScope, UsageResource
from pace.version import __version__

router = APIRouter(prefix="/v1/usage", tags=["Keys and usage"])

_SCOPES: tuple[KeyScope, ...] = ("read", "submit", "admin")


@router.get(
    "", summary="Get usage and limits", response_model=UsageResource, responses=problems(401, 403, 429, 503)
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
