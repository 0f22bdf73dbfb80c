"""Routes under /v1/schedules and /v1/tasks."""

import asyncio
import re
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from pace.api.answers import json_response, schedule_bytes
from pace.api.body import receive_body
from pace.api.documents import JobName, ResourceId, ScheduleRequest, ScheduleResource, TaskResource
from pace.api.openapi import json_body, problems
from pace.api.problems import Refused, make_problem, not_found
from pace.api.service import Service
from pace.api.store import StoredSchedule
from pace.api.tasks import TaskStatus
from pace.schedule import Sha256

router = APIRouter(prefix="/v1")

TENANT = "default"


def service_of(request: Request) -> Service:
    """Return the running service."""
    service: Service = request.app.state.service
    return service


@router.post(
    "/schedules",
    summary="Schedule a profile",
    status_code=201,
    responses={
        201: {"model": ScheduleResource, "description": "The schedule; Location says where it stays."},
        202: {"model": TaskResource, "description": "Not solved within the wait; Location is the task's."},
        **problems(413, 415, 422, 429, 500, 503),
    },
    openapi_extra=json_body(ScheduleRequest),
)
async def create_schedule(request: Request) -> Response:
    """Return the schedule of a profile. The same profile and options are solved only once.

    ``Prefer: wait=N`` bounds the wait to N seconds, ``Prefer: respond-async`` to none.
    """
    service = service_of(request)
    wait_s = _preferred_wait_s(request.headers.get("prefer", ""), service.settings.wait_s)
    body = await receive_body(request, service.settings.max_body_bytes)
    submitted = await service.submit(TENANT, body)
    if submitted.schedule is not None:
        return _created(submitted.schedule)
    assert submitted.task_id is not None
    status = await service.dispatcher.wait(TENANT, submitted.task_id, wait_s)
    if status is not None and status.state in ("queued", "running"):
        headers = {"Location": f"/v1/tasks/{status.id}", "Retry-After": "1"}
        return json_response(_task(status).model_dump_json().encode(), 202, headers)
    if status is not None and status.problem is not None:
        raise Refused(status.problem)
    schedule = await asyncio.to_thread(service.store.get_schedule, TENANT, submitted.schedule_id)
    if schedule is None:
        raise Refused(make_problem("gone", 503, "the schedule was deleted while it was made; send it again"))
    return _created(schedule)


@router.get(
    "/schedules/{schedule_id}",
    summary="Get a schedule",
    response_model=ScheduleResource,
    responses=problems(404, 422),
)
async def get_schedule(request: Request, schedule_id: Annotated[ResourceId, Path()]) -> Response:
    """Return a stored schedule."""
    schedule = await asyncio.to_thread(service_of(request).store.get_schedule, TENANT, schedule_id)
    if schedule is None:
        raise Refused(not_found(f'there is no schedule "{schedule_id}"'))
    return json_response(schedule_bytes(schedule))


@router.get(
    "/schedules",
    summary="Get a job's newest schedule",
    response_model=ScheduleResource,
    responses=problems(404, 422),
)
async def newest_schedule(
    request: Request, job: Annotated[JobName, Query()], fingerprint: Annotated[Sha256, Query()]
) -> Response:
    """Return the newest schedule that a job has for a model: the fingerprint says what it fits."""
    schedule = await asyncio.to_thread(service_of(request).store.newest_schedule, TENANT, job, fingerprint)
    if schedule is None:
        raise Refused(not_found(f'job "{job}" has no schedule with fingerprint {fingerprint}'))
    return json_response(schedule_bytes(schedule))


@router.get(
    "/tasks/{task_id}", summary="Get a task", response_model=TaskResource, responses=problems(404, 422)
)
async def get_task(request: Request, task_id: Annotated[ResourceId, Path()]) -> Response:
    """Say how far a task is and where its result lies."""
    status = await asyncio.to_thread(service_of(request).tasks.status, TENANT, task_id)
    if status is None:
        raise Refused(not_found(f'there is no task "{task_id}"'))
    return json_response(_task(status).model_dump_json().encode())


def _created(schedule: StoredSchedule) -> Response:
    return json_response(schedule_bytes(schedule), 201, {"Location": f"/v1/schedules/{schedule.id}"})


def _task(status: TaskStatus) -> TaskResource:
    return TaskResource(
        id=status.id,
        state=status.state,
        created_at=status.created_at,
        started_at=status.started_at,
        finished_at=status.finished_at,
        location=f"/v1/schedules/{status.schedule_id}" if status.state == "done" else None,
        problem=status.problem,
    )


def _preferred_wait_s(prefer: str, default_s: float) -> float:
    # RFC 7240: preferences that are not understood are ignored, never refused.
    preferences = [part.strip().lower() for part in re.split("[,;]", prefer)]
    for preference in preferences:
        if match := re.fullmatch(r'wait\s*=\s*"?(\d{1,6})"?', preference):
            return min(float(match[1]), default_s)
    return 0.0 if "respond-async" in preferences else default_s
