"""Routes under /v1/schedules."""

import asyncio
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from pace.api.answers import JSON, Answer, document_answer
from pace.api.audit import audit
from pace.api.auth import Admin, Principal, Reader, Submitter
from pace.api.body import receive_body
from pace.api.documents import (
    ResourceId,
    SchedulePage,
    ScheduleRequest,
    ScheduleResource,
    TaskResource,
    example_profile,
)
from pace.api.openapi import json_body, problems
from pace.api.parameters import Cursor, Limit, OfFingerprint, OfJob, RunningService
from pace.api.problems import Refused, make_problem, not_found
from pace.api.service import Service
from pace.api.task_routes import settle
from pace.api.work import chart, read_request, timeline

router = APIRouter(prefix="/v1")

SVG = "image/svg+xml"
_EXAMPLE = {"profile": example_profile(), "options": {"fusion": "pace"}, "job": "two-layers"}


@router.post(
    "/schedules",
    summary="Schedule a profile",
    status_code=201,
    responses={
        201: {"model": ScheduleResource, "description": "The schedule; Location says where it stays"},
        202: {"model": TaskResource, "description": "Not solved within the wait; Location is the task's"},
        **problems(401, 403, 409, 413, 415, 422, 429, 500, 503, 507),
    },
    openapi_extra=json_body(ScheduleRequest, _EXAMPLE),
)
async def create_schedule(request: Request, service: RunningService, principal: Submitter) -> Response:
    """Return the schedule of a profile. The same profile and options are solved only once.

    ``Prefer: wait=N`` bounds the wait to N seconds, ``Prefer: respond-async`` to none.
    """
    tenant = principal.tenant
    body, gzipped = await receive_body(request, service.settings.max_body_bytes)
    received = await service.intake.read(read_request, body, gzipped)
    del body
    submitted = await service.submit(tenant, received)
    audit("schedule-requested", principal, schedule=submitted.result_id, profile=received.profile_sha256)
    created = {"Location": f"/v1/schedules/{submitted.result_id}"}
    if submitted.schedule is not None:
        return service.remember(tenant, submitted.schedule).response(201, created)
    unsettled = await settle(service, tenant, submitted, request.headers.get("prefer", ""))
    if unsettled is not None:
        return unsettled
    answer = await service.schedule(tenant, submitted.result_id)
    if answer is None:
        raise Refused(make_problem("gone", 503, "the schedule was deleted while it was made; send it again"))
    return answer.response(201, created)


@router.get(
    "/schedules",
    summary="Get a job's newest schedule, or list schedules",
    response_model=ScheduleResource | SchedulePage,
    responses=problems(401, 403, 404, 422, 429),
)
async def find_schedules(
    request: Request,
    service: RunningService,
    principal: Reader,
    job: OfJob = None,
    fingerprint: OfFingerprint = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Return the newest schedule that a job has for a model, if both job and fingerprint are given.

    Otherwise, list schedules without their content, newest first.
    """
    tenant = principal.tenant
    if job is None or fingerprint is None:
        page = await asyncio.to_thread(service.store.list_schedules, tenant, job, fingerprint, limit, cursor)
        return document_answer(page).response_to(request)
    stored = await asyncio.to_thread(service.store.newest_schedule, tenant, job, fingerprint)
    if stored is None:
        raise Refused(not_found(f'job "{job}" has no schedule with fingerprint {fingerprint}'))
    return service.remember(tenant, stored).response_to(request)


@router.get(
    "/schedules/{schedule_id}",
    summary="Get a schedule",
    response_model=ScheduleResource,
    responses=problems(401, 403, 404, 422, 429),
)
async def get_schedule(
    request: Request, service: RunningService, principal: Reader, schedule_id: Annotated[ResourceId, Path()]
) -> Response:
    """Return a stored schedule."""
    return await answer_schedule(request, service, principal, schedule_id)


async def answer_schedule(
    request: Request, service: Service, principal: Principal, schedule_id: str
) -> Response:
    """Answer a GET of one schedule."""
    answer = await service.schedule(principal.tenant, schedule_id)
    if answer is None:
        raise Refused(not_found(f'there is no schedule "{schedule_id}"'))
    return answer.response_to(request)


@router.get(
    "/schedules/{schedule_id}/timeline",
    summary="Get a schedule's timeline",
    response_class=Response,
    responses={
        200: {"content": {JSON: {"schema": {"type": "object"}}}, "description": "A Chrome trace"},
        **problems(401, 403, 404, 422, 429, 500, 503),
    },
)
async def get_timeline(
    service: RunningService, principal: Reader, schedule_id: Annotated[ResourceId, Path()]
) -> Response:
    """Return the predicted window as a Chrome trace, for chrome://tracing or Perfetto."""
    return Answer.of(await _drawn(service, principal, schedule_id, timeline)).response()


@router.get(
    "/schedules/{schedule_id}/chart",
    summary="Get a schedule's chart",
    response_class=Response,
    responses={
        200: {"content": {SVG: {"schema": {"type": "string"}}}, "description": "A picture"},
        **problems(401, 403, 404, 422, 429, 500, 501, 503),
    },
)
async def get_chart(
    service: RunningService, principal: Reader, schedule_id: Annotated[ResourceId, Path()]
) -> Response:
    """Return a picture of the predicted window."""
    return Response(await _drawn(service, principal, schedule_id, chart), media_type=SVG)


async def _drawn(
    service: Service, principal: Principal, schedule_id: str, draw: Callable[[bytes, bytes], bytes]
) -> bytes:
    found = await asyncio.to_thread(service.store.get_documents, principal.tenant, schedule_id)
    if found is None:
        raise Refused(not_found(f'there is no schedule "{schedule_id}"'))
    return await service.compute(draw, *found)


@router.delete(
    "/schedules/{schedule_id}",
    summary="Delete a schedule",
    status_code=204,
    responses=problems(401, 403, 404, 422, 429),
)
async def delete_schedule(
    service: RunningService, principal: Admin, schedule_id: Annotated[ResourceId, Path()]
) -> None:
    """Delete a stored schedule. The profile stays."""
    deleted = await asyncio.to_thread(service.store.delete_schedule, principal.tenant, schedule_id)
    service.forget(principal.tenant, schedule_id)
    if not deleted:
        raise Refused(not_found(f'there is no schedule "{schedule_id}"'))
    audit("schedule-deleted", principal, schedule=schedule_id)
