"""Routes under /v1/schedules."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from pace.api.access import Principal
from pace.api.errors import NotFound, ResultDeleted
from pace.api.http.answers import JSON, PreparedAnswer, document_answer
from pace.api.http.audit import audit
from pace.api.http.body import read_body
from pace.api.http.openapi import json_body, problems
from pace.api.http.parameters import Cursor, KnownSchedules, Limit, OfFingerprint, OfJob, RunningService
from pace.api.http.routes.tasks import unfinished, wait_for_task
from pace.api.http.schedule_answers import ScheduleAnswers
from pace.api.http.security import Admin, Reader, Submitter
from pace.api.service import Service
from pace.api.storage.store import StoredSchedule
from pace.api.workers.functions import chart, read_request, timeline
from pace.client.documents import (
    ResourceId,
    SchedulePage,
    ScheduleRequest,
    ScheduleResource,
    TaskResource,
    example_profile,
)

router = APIRouter(prefix="/v1")

SVG = "image/svg+xml"
_EXAMPLE = {"profile": example_profile(), "options": {"fusion": "paper"}, "job": "two-layers"}


@router.post(
    "/schedules",
    summary="Schedule a profile",
    status_code=201,
    responses={
        201: {"model": ScheduleResource, "description": "The schedule; Location says where it stays"},
        202: {"model": TaskResource, "description": "Not solved within the wait; Location is the task's"},
        **problems(401, 403, 408, 409, 413, 415, 422, 429, 500, 503, 507),
    },
    openapi_extra=json_body(ScheduleRequest, _EXAMPLE),
)
async def create_schedule(
    request: Request, service: RunningService, answers: KnownSchedules, principal: Submitter
) -> Response:
    """Return the schedule of a profile. The same profile and options are solved only once.

    ``Prefer: wait=N`` bounds the wait to N seconds, ``Prefer: respond-async`` to none.
    """
    tenant = principal.tenant
    received = await read_body(request, tenant, read_request)
    # Bodies that are read once may be sent by several.
    received = replace(received, asked_by=principal.key_id or principal.subject)
    submitted = await service.submit(tenant, received)
    audit("schedule-requested", principal, schedule=submitted.result_id, profile=received.profile_sha256)
    created = {"Location": f"/v1/schedules/{submitted.result_id}"}
    if isinstance(submitted.result, StoredSchedule):
        return answers.keep(tenant, submitted.result).response(201, created)
    status = await wait_for_task(service, tenant, submitted, request.headers.get("prefer", ""))
    if status is not None and status.live:
        return unfinished(status)
    if status is not None and status.document is not None and isinstance(submitted.unsolved, StoredSchedule):
        solved = replace(submitted.unsolved, document=status.document)
        return answers.keep(tenant, solved).response(201, created)
    answer = await answers.get(tenant, submitted.result_id)
    if answer is None:
        raise ResultDeleted("the schedule was deleted while it was made; send it again")
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
    answers: KnownSchedules,
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
        page = await service.in_database(
            service.store.list_schedules, tenant, job, fingerprint, limit, cursor
        )
        return document_answer(page).response_to(request)
    stored = await service.read(service.store.newest_schedule, tenant, job, fingerprint)
    if stored is None:
        raise NotFound(f'job "{job}" has no schedule with fingerprint {fingerprint}')
    return answers.keep(tenant, stored).response_to(request)


@router.get(
    "/schedules/{schedule_id}",
    summary="Get a schedule",
    response_model=ScheduleResource,
    responses=problems(401, 403, 404, 422, 429),
)
async def get_schedule(
    request: Request, answers: KnownSchedules, principal: Reader, schedule_id: Annotated[ResourceId, Path()]
) -> Response:
    """Return a stored schedule."""
    return await answer_schedule(request, answers, principal, schedule_id)


async def answer_schedule(
    request: Request, answers: ScheduleAnswers, principal: Principal, schedule_id: str
) -> Response:
    """PreparedAnswer a GET of one schedule."""
    answer = await answers.get(principal.tenant, schedule_id)
    if answer is None:
        raise NotFound(f'there is no schedule "{schedule_id}"')
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
    return PreparedAnswer.of(await _drawn(service, principal, schedule_id, timeline)).response()


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
    found = await service.in_database(service.store.get_documents, principal.tenant, schedule_id)
    if found is None:
        raise NotFound(f'there is no schedule "{schedule_id}"')
    documents = [(await service.documents.whole(each)).document for each in found]
    return await service.compute(draw, *documents, tenant=principal.tenant)


@router.delete(
    "/schedules/{schedule_id}",
    summary="Delete a schedule",
    status_code=204,
    responses=problems(401, 403, 404, 422, 429),
)
async def delete_schedule(
    service: RunningService,
    answers: KnownSchedules,
    principal: Admin,
    schedule_id: Annotated[ResourceId, Path()],
) -> None:
    """Delete a stored schedule. The profile stays."""
    deleted = await service.in_database(service.store.delete_schedule, principal.tenant, schedule_id)
    answers.drop(principal.tenant, schedule_id)
    if not deleted:
        raise NotFound(f'there is no schedule "{schedule_id}"')
    audit("schedule-deleted", principal, schedule=schedule_id)
