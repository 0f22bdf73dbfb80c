"""Routes under /v1/what-if: what a job would gain on other networks and scales."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from pace.api.errors import NotFound, ResultDeleted
from pace.api.http.answers import JSON, PreparedAnswer, document_answer, what_if_answer
from pace.api.http.audit import audit
from pace.api.http.body import read_body
from pace.api.http.openapi import json_body, problems
from pace.api.http.parameters import Cursor, Limit, RunningService
from pace.api.http.routes.tasks import unfinished, wait_for_task
from pace.api.http.security import Admin, Reader, Submitter
from pace.api.storage.questions import StoredAnswer
from pace.api.workers.functions import read_what_if, what_if_csv
from pace.client.documents import ResourceId, TaskResource, example_profile
from pace.client.what_if_documents import WhatIfPage, WhatIfRequest, WhatIfResource

router = APIRouter(prefix="/v1/what-if")

CSV = "text/csv"
WhatIfId = Annotated[ResourceId, Path()]
_EXAMPLE = {
    "profile": example_profile(),
    "grid": {"bandwidth_gbps": [1, 10], "workers": [4, 8], "policies": ["ddp", "pace"]},
}


@router.post(
    "",
    summary="Ask what if",
    status_code=201,
    responses={
        201: {"model": WhatIfResource, "description": "The answer; Location says where it stays"},
        202: {"model": TaskResource, "description": "Not answered within the wait; Location is the task's"},
        **problems(401, 403, 408, 409, 413, 415, 422, 429, 500, 503, 507),
    },
    openapi_extra=json_body(WhatIfRequest, _EXAMPLE),
)
async def create_what_if(request: Request, service: RunningService, principal: Submitter) -> Response:
    """Simulate every point of a grid under every policy. The same question is answered only once.

    ``Prefer`` is as for schedules. The task's ``/events`` tell how far it is; DELETE of the task ends it.
    """
    tenant = principal.tenant
    received = await read_body(request, tenant, read_what_if)
    submitted = await service.submit(tenant, received)
    audit("what-if-requested", principal, what_if=submitted.result_id, profile=received.profile_sha256)
    stored = submitted.result
    if stored is None:
        status = await wait_for_task(service, tenant, submitted, request.headers.get("prefer", ""))
        if status is not None and status.live:
            return unfinished(status)
        stored = await service.read(service.what_ifs.get, tenant, submitted.result_id)
    if not isinstance(stored, StoredAnswer):
        raise ResultDeleted("the answer was deleted while it was made; send it again")
    answer = await asyncio.to_thread(what_if_answer, stored)
    return answer.response(201, {"Location": f"/v1/what-if/{submitted.result_id}"})


@router.get("", summary="List what-ifs", response_model=WhatIfPage, responses=problems(401, 403, 422, 429))
async def list_what_ifs(
    request: Request, service: RunningService, principal: Reader, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """List what-ifs without their content, newest first."""
    page = await service.in_database(service.what_ifs.list, principal.tenant, limit, cursor)
    return document_answer(page).response_to(request)


@router.get(
    "/{what_if_id}",
    summary="Get a what-if",
    response_class=Response,
    responses={
        200: {
            "content": {
                JSON: {"schema": {"$ref": "#/components/schemas/WhatIfResource"}},
                CSV: {"schema": {"type": "string"}},
            },
            "description": "The answer; its cells alone as CSV if the caller accepts nothing but that",
        },
        **problems(401, 403, 404, 422, 429, 500, 503),
    },
)
async def get_what_if(
    request: Request, service: RunningService, principal: Reader, what_if_id: WhatIfId
) -> Response:
    """Return a stored what-if."""
    stored = await service.read(service.what_ifs.get, principal.tenant, what_if_id)
    if stored is None:
        raise NotFound(f'there is no what-if "{what_if_id}"')
    varies = {"Vary": "Accept"}
    if request.headers.get("accept", "").partition(";")[0].strip().lower() == CSV:
        text = await service.compute(what_if_csv, stored.document, tenant=principal.tenant)
        return PreparedAnswer.of(text, f"{CSV}; charset=utf-8").response_to(request, varies)
    return (await asyncio.to_thread(what_if_answer, stored)).response_to(request, varies)


@router.delete(
    "/{what_if_id}",
    summary="Delete a what-if",
    status_code=204,
    responses=problems(401, 403, 404, 422, 429),
)
async def delete_what_if(service: RunningService, principal: Admin, what_if_id: WhatIfId) -> None:
    """Delete a stored what-if. The profile stays."""
    if not await service.in_database(service.what_ifs.delete, principal.tenant, what_if_id):
        raise NotFound(f'there is no what-if "{what_if_id}"')
    audit("what-if-deleted", principal, what_if=what_if_id)
