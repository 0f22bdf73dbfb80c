"""The route /v1/jobs: training jobs by name."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from pace.api.http.answers import document_answer
from pace.api.http.openapi import problems
from pace.api.http.parameters import Cursor, Limit, RunningService
from pace.api.http.security import Reader
from pace.api.storage.pages import JobOrder
from pace.client.documents import JobName
from pace.client.page_documents import JobPage

router = APIRouter(prefix="/v1/jobs", tags=["Jobs and reports"])

Contains = Annotated[
    JobName | None, Query(description="Only jobs whose name contains this text, in any case")
]
Order = Annotated[
    JobOrder, Query(description="Order: `newest` by the last request for a schedule, or by name")
]


@router.get("", summary="List jobs", response_model=JobPage, responses=problems(401, 403, 422, 429))
async def list_jobs(
    request: Request,
    service: RunningService,
    principal: Reader,
    contains: Contains = None,
    order: Order = "newest",
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List the jobs that have schedules, each with its newest report.

    A job's schedules are under ``/v1/schedules?job=``, its reports under ``/v1/reports?job=``.
    """
    page = await service.in_database(service.jobs.page, principal.tenant, contains, order, limit, cursor)
    return document_answer(page).response_to(request)
