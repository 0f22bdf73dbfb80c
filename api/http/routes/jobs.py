"""The route /v1/jobs: training jobs by name."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import AfterValidator, BeforeValidator
from starlette.responses import Response

from pace.api.http.answers import document_answer
from pace.api.http.openapi import problems
from pace.api.http.parameters import Contains, Cursor, Limit, RunningService
from pace.api.http.security import Reader
from pace.api.storage.job_list import JobOrder, JobQuery
from pace.client.page_documents import JobPage

router = APIRouter(prefix="/v1/jobs", tags=["Jobs and reports"])


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("expected a moment between the years 1 and 9999 in UTC") from None


Order = Annotated[
    JobOrder,
    Query(
        description="Order: `name`, or the largest first by `newest` (the last request for a schedule),"
        " `schedules`, `predicted`, `measured` or `drift`. Jobs without a report come last in the last three."
    ),
]
Reverse = Annotated[bool, Query(description="Reverse the order: smallest first, names from Z to A")]
MinDrift = Annotated[
    float | None,
    Query(
        ge=0,
        le=1000,
        allow_inf_nan=False,
        description="Only jobs whose newest report differs from its prediction by this share or more, "
        "for example 0.1",
    ),
]
AskedBy = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=200,
        pattern=r"^[^\x00]+$",
        description="Only jobs whose last request used the API key of this `id`, or a token of this `sub`",
    ),
]


def _no_number(moment: object) -> object:
    # pydantic would take seconds since 1970, which the document does not say.
    if isinstance(moment, str) and moment.strip().lstrip("+-").replace(".", "", 1).isdecimal():
        raise ValueError("expected a moment such as 2026-11-30T12:00:00Z")
    return moment


Moment = Annotated[datetime, BeforeValidator(_no_number), AfterValidator(_in_utc)]
Since = Annotated[
    Moment | None,
    Query(description="Only jobs whose last request came at this moment or later; UTC without an offset"),
]
Before = Annotated[
    Moment | None, Query(description="Only jobs whose last request came before; UTC without an offset")
]


@router.get("", summary="List jobs", response_model=JobPage, responses=problems(401, 403, 422, 429))
async def list_jobs(
    request: Request,
    service: RunningService,
    principal: Reader,
    contains: Contains = None,
    order: Order = "newest",
    reverse: Reverse = False,
    min_drift: MinDrift = None,
    asked_by: AskedBy = None,
    since: Since = None,
    before: Before = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List the jobs that have schedules, each with its newest report.

    A job's schedules are under ``/v1/schedules?job=``, its reports under ``/v1/reports?job=``.
    """
    asked = JobQuery(
        contains=contains,
        order=order,
        reverse=reverse,
        min_drift=min_drift,
        asked_by=asked_by,
        since=since,
        before=before,
    )
    page = await service.in_database(service.jobs.page, principal.tenant, asked, limit, cursor)
    return document_answer(page).response_to(request)
