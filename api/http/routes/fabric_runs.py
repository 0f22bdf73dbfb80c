"""Routes under /v1/fabric-runs: whole training runs over a fabric, simulated."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from pace.api.errors import NotFound, ResultDeleted
from pace.api.http.answers import JSON, document_answer, fabric_run_answer
from pace.api.http.audit import audit
from pace.api.http.body import read_body
from pace.api.http.openapi import json_body, problems
from pace.api.http.parameters import Cursor, Limit, RunningService
from pace.api.http.routes.tasks import unfinished, wait_for_task
from pace.api.http.security import Admin, Reader, Submitter
from pace.api.storage.questions import StoredAnswer
from pace.api.workers.fabric_runs import read_fabric_run
from pace.client.documents import ResourceId, TaskResource
from pace.client.fabric_documents import FabricRunPage, FabricRunRequest, FabricRunResource

router = APIRouter(prefix="/v1/fabric-runs")

FabricRunId = Annotated[ResourceId, Path()]
_EXAMPLE = {
    "scenario": {"machines": 4, "duration_s": 5, "delay_bound": 10},
    "policies": ["mlfabric-a", "ring"],
}


@router.post(
    "",
    summary="Simulate a fabric run",
    status_code=201,
    responses={
        201: {"model": FabricRunResource, "description": "The answer; Location says where it stays"},
        202: {"model": TaskResource, "description": "Not answered within the wait; Location is the task's"},
        **problems(401, 403, 408, 409, 413, 415, 422, 429, 500, 503, 507),
    },
    openapi_extra=json_body(FabricRunRequest, _EXAMPLE),
)
async def create_fabric_run(request: Request, service: RunningService, principal: Submitter) -> Response:
    """Simulate a scenario under every policy that is asked for. The same question is answered only once.

    ``Prefer`` is as for schedules. The task's ``/events`` tell how far it is; DELETE of the task ends it.
    """
    tenant = principal.tenant
    received = await read_body(request, tenant, read_fabric_run)
    submitted = await service.submit(tenant, received)
    asked = {"fabric_run": submitted.result_id, "scenario": received.scenario_sha256}
    audit("fabric-run-requested", principal, **asked)
    stored = submitted.result
    if stored is None:
        status = await wait_for_task(service, tenant, submitted, request.headers.get("prefer", ""))
        if status is not None and status.live:
            return unfinished(status)
        stored = await service.read(service.fabric_runs.get, tenant, submitted.result_id)
    if not isinstance(stored, StoredAnswer):
        raise ResultDeleted("the answer was deleted while it was made; send it again")
    answer = await asyncio.to_thread(fabric_run_answer, stored)
    return answer.response(201, {"Location": f"/v1/fabric-runs/{submitted.result_id}"})


@router.get(
    "", summary="List fabric runs", response_model=FabricRunPage, responses=problems(401, 403, 422, 429)
)
async def list_fabric_runs(
    request: Request, service: RunningService, principal: Reader, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """List runs without their content, newest first."""
    page = await service.in_database(service.fabric_runs.list, principal.tenant, limit, cursor)
    return document_answer(page).response_to(request)


@router.get(
    "/{run_id}",
    summary="Get a fabric run",
    response_class=Response,
    responses={
        200: {
            "content": {JSON: {"schema": {"$ref": "#/components/schemas/FabricRunResource"}}},
            "description": "The answer",
        },
        **problems(401, 403, 404, 422, 429, 500, 503),
    },
)
async def get_fabric_run(
    request: Request, service: RunningService, principal: Reader, run_id: FabricRunId
) -> Response:
    """Return a stored run."""
    stored = await service.read(service.fabric_runs.get, principal.tenant, run_id)
    if stored is None:
        raise NotFound(f'there is no fabric run "{run_id}"')
    return (await asyncio.to_thread(fabric_run_answer, stored)).response_to(request)


@router.delete(
    "/{run_id}",
    summary="Delete a fabric run",
    status_code=204,
    responses=problems(401, 403, 404, 422, 429),
)
async def delete_fabric_run(service: RunningService, principal: Admin, run_id: FabricRunId) -> None:
    """Delete a stored run and its scenario."""
    if not await service.in_database(service.fabric_runs.delete, principal.tenant, run_id):
        raise NotFound(f'there is no fabric run "{run_id}"')
    audit("fabric-run-deleted", principal, fabric_run=run_id)
