"""Routes under /v1/tasks: how far work is, as a document or as events, and its cancellation."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Annotated

import structlog
from fastapi import APIRouter, Path, Query, Request
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from pace.api.errors import NotFound, TaskFailed, TaskIsFinished
from pace.api.http.answers import document_answer
from pace.api.http.headers import bearer_of
from pace.api.http.openapi import problems
from pace.api.http.parameters import Cursor, Limit, RunningService
from pace.api.http.security import Reader, Submitter, audit
from pace.api.logs import brief
from pace.api.questions.all_kinds import KINDS
from pace.api.service import Service
from pace.api.tasks.state import Submitted, TaskStatus
from pace.client.documents import ResourceId, TaskPage, TaskResource, TaskState

router = APIRouter(prefix="/v1/tasks", tags=["Tasks"])
log = structlog.get_logger(__name__)

TaskId = Annotated[ResourceId, Path(description="Identifier of the task")]
OfState = Annotated[TaskState | None, Query(description="Only tasks in this state")]
OfKind = Annotated[
    str | None,
    Query(
        description="Only tasks of this kind",
        pattern=f"^({'|'.join(KINDS)})$",
        json_schema_extra={"enum": list(KINDS)},
    ),
]
EVENTS = "text/event-stream"
# Seconds between two checks that a follower's key is still valid.
_KEY_CHECK_S = 0.5


@router.get("", summary="List tasks", response_model=TaskPage, responses=problems(401, 403, 422, 429))
async def list_tasks(
    request: Request,
    service: RunningService,
    principal: Reader,
    state: OfState = None,
    kind: OfKind = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List the tenant's tasks, newest first."""
    tasks, following = await service.in_database(
        service.tasks.list, principal.tenant, state, kind, limit, cursor
    )
    page = TaskPage(items=tuple(map(task_resource, tasks)), next=following)
    return document_answer(page).response_to(request)


@router.get(
    "/{task_id}",
    summary="Get a task",
    response_model=TaskResource,
    responses=problems(401, 403, 404, 422, 429),
)
async def get_task(request: Request, service: RunningService, principal: Reader, task_id: TaskId) -> Response:
    """Return the state and progress of a task, and the path of its result."""
    status = await service.in_database(service.tasks.status, principal.tenant, task_id)
    return document_answer(task_resource(_known(status, task_id))).response_to(request)


@router.get(
    "/{task_id}/events",
    summary="Follow a task",
    response_class=Response,
    responses={
        200: {
            # Readers differ in whether a schema here is that of the whole text or of one event.
            "content": {EVENTS: {"schema": {}}},
            "description": "Server-sent events: `event` is the task's state, `data` the task",
        },
        **problems(401, 403, 404, 422, 429),
    },
)
async def follow_task(
    request: Request, service: RunningService, principal: Reader, task_id: TaskId
) -> Response:
    """Send an event whenever the task's state or progress changes, until the task ends or the key expires."""
    status = await service.in_database(service.tasks.status, principal.tenant, task_id)
    _known(status, task_id)
    token = bearer_of(request.headers.get("authorization"))
    return EventSourceResponse(_events(service, token, principal.tenant, task_id))


async def _events(
    service: Service, token: str | None, tenant: str, task_id: str
) -> AsyncIterator[ServerSentEvent]:
    changes = service.dispatcher.watches.changes(tenant, task_id)
    following = asyncio.ensure_future(anext(changes, None))
    try:
        while await service.access.is_valid(token):
            if not (await asyncio.wait((following,), timeout=_KEY_CHECK_S))[0]:
                continue
            status = following.result()
            if status is None:
                return
            yield ServerSentEvent(task_resource(status).model_dump_json(), event=status.state)
            following = asyncio.ensure_future(anext(changes, None))
    except Exception as error:
        # The answer has begun: it can only end, and the follower asks again.
        log.warning("events-ended", task=task_id, error=brief(error))
    finally:
        following.cancel()


@router.delete(
    "/{task_id}",
    summary="Cancel a task",
    response_model=TaskResource,
    responses=problems(401, 403, 404, 409, 422, 429),
)
async def cancel_task(service: RunningService, principal: Submitter, task_id: TaskId) -> Response:
    """Cancel a task for everyone who waits for it. A later request for its result starts a new task."""
    status = _known(await service.cancel(principal.tenant, task_id), task_id)
    if status.state != "cancelled":
        raise TaskIsFinished(f"a task that is {status.state} cannot be cancelled")
    audit("task-cancelled", principal, task=task_id)
    return document_answer(task_resource(status)).response()


async def wait_for_task(
    service: Service, tenant: str, submitted: Submitted, prefer: str
) -> TaskStatus | None:
    """Wait for a task as its caller prefers; return how far it is then, None if it is gone.

    Raises
    ------
    TaskFailed
        If it ended without a result.
    """
    assert submitted.task_id is not None
    wait_s = _preferred_wait_s(prefer, service.settings.wait_s)
    told = service.dispatcher.does(submitted.task_id)
    status = await service.dispatcher.watches.wait(tenant, submitted.task_id, wait_s, told=told)
    if status is not None and not status.live and status.problem is not None:
        raise TaskFailed(status.problem)
    return status


def unfinished(status: TaskStatus) -> Response:
    """Answer 202: the task goes on, and its document is where to ask."""
    headers = {"Location": f"/v1/tasks/{status.id}", "Retry-After": "1"}
    return document_answer(task_resource(status)).response(202, headers)


def task_resource(status: TaskStatus) -> TaskResource:
    """Return the document of a task."""
    return TaskResource(
        id=status.id,
        kind=status.kind,
        name=status.name,
        state=status.state,
        created_at=status.created_at,
        started_at=status.started_at,
        finished_at=status.finished_at,
        location=status.location if status.state == "done" else None,
        problem=status.problem,
        num_done=status.num_done,
        num_total=status.num_total,
    )


def _known(status: TaskStatus | None, task_id: str) -> TaskStatus:
    if status is None:
        raise NotFound(f'there is no task "{task_id}"')
    return status


def _preferred_wait_s(prefer: str, default_s: float) -> float:
    # RFC 7240: preferences that are not understood are ignored, never refused.
    preferences = [part.strip().lower() for part in re.split("[,;]", prefer)]
    for preference in preferences:
        if match := re.fullmatch(r'wait\s*=\s*"?(\d{1,6})"?', preference):
            return min(float(match[1]), default_s)
    return 0.0 if "respond-async" in preferences else default_s
