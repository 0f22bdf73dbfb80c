"""Routes under /v1/schedules that other questions do not have: a job's newest schedule, and pictures."""

from collections.abc import Callable

from fastapi import APIRouter, Request
from starlette.responses import Response

from pace.api.access import Principal
from pace.api.errors import NotFound
from pace.api.http.answers import JSON, PreparedAnswer, document_answer
from pace.api.http.openapi import problems
from pace.api.http.parameters import (
    Cursor,
    KnownAnswers,
    Limit,
    OfFingerprint,
    OfJob,
    QuestionId,
    RunningService,
)
from pace.api.http.routes.questions import not_found
from pace.api.http.security import Reader
from pace.api.questions.all_kinds import KINDS
from pace.api.questions.kind import SCHEDULE
from pace.api.service import Service
from pace.api.workers.drawings import chart, timeline
from pace.client.documents import ScheduleResource

router = APIRouter(tags=["Schedules"])

SVG = "image/svg+xml"
_KIND = KINDS[SCHEDULE]


@router.get(
    _KIND.path,
    summary="Get a job's newest schedule, or list schedules",
    description="Return a job's newest schedule for a model, if both job and fingerprint are given; else list"
    " schedules without their content, newest first.",
    response_model=ScheduleResource | _KIND.page,
    responses=problems(401, 403, 404, 422, 429),
)
async def find_schedules(
    request: Request,
    service: RunningService,
    answers: KnownAnswers,
    principal: Reader,
    job: OfJob = None,
    fingerprint: OfFingerprint = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Answer with one schedule, or with a page of them."""
    tenant, questions = principal.tenant, service.questions
    if job is None or fingerprint is None:
        page = await service.in_database(
            questions.list, tenant, _KIND, limit, cursor, job=job, fingerprint=fingerprint
        )
        return document_answer(page).response_to(request)
    stored = await service.read(questions.newest, tenant, _KIND, job, fingerprint)
    if stored is None:
        raise NotFound(f'job "{job}" has no schedule with fingerprint {fingerprint}')
    return (await answers.keep(tenant, _KIND, stored)).response_to(request)


@router.get(
    f"{_KIND.path}/{{question_id}}/timeline",
    summary="Get a schedule's timeline",
    response_class=Response,
    responses={
        200: {
            "content": {JSON: {"schema": {"type": "object"}}},
            "description": "The predicted window as a Chrome trace",
        },
        **problems(401, 403, 404, 422, 429, 500, 503),
    },
)
async def get_timeline(service: RunningService, principal: Reader, question_id: QuestionId) -> Response:
    """Return the predicted window as a Chrome trace, for ui.perfetto.dev."""
    return PreparedAnswer.of(await _drawn(service, principal, question_id, timeline)).response()


@router.get(
    f"{_KIND.path}/{{question_id}}/chart",
    summary="Get a schedule's chart",
    response_class=Response,
    responses={
        200: {
            "content": {SVG: {"schema": {"type": "string"}}},
            "description": "The predicted window as an SVG picture",
        },
        **problems(401, 403, 404, 422, 429, 500, 501, 503),
    },
)
async def get_chart(service: RunningService, principal: Reader, question_id: QuestionId) -> Response:
    """Return a picture of the predicted window."""
    return Response(await _drawn(service, principal, question_id, chart), media_type=SVG)


async def _drawn(
    service: Service, principal: Principal, question_id: str, draw: Callable[[bytes, bytes], bytes]
) -> bytes:
    found = await service.in_database(service.questions.get_documents, principal.tenant, _KIND, question_id)
    if found is None:
        raise not_found(_KIND, question_id)
    documents = [(await service.documents.whole(each)).document for each in found]
    return await service.compute(draw, *documents, tenant=principal.tenant)
