"""Routes under /v1/reports: measured iteration times beside predicted ones."""

from typing import Annotated

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from pace.api.http.answers import document_answer
from pace.api.http.body import receive_small
from pace.api.http.openapi import json_body, problems
from pace.api.http.parameters import Cursor, Limit, OfFingerprint, OfJob, RunningService
from pace.api.http.security import Reader, Reporter, audit
from pace.client.documents import ReportPage, ReportRequest, ReportResource

router = APIRouter(prefix="/v1/reports", tags=["Jobs and reports"])

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="A report that is sent twice with the same key is stored once",
    ),
]

_EXAMPLE = {
    "job": "two-layers",
    "fingerprint": "0" * 64,
    "profile_sha256": "1" * 64,
    "predicted_iteration_s": 0.016,
    "measured_iteration_s": 0.017,
    "plain_iteration_s": 0.021,
    "num_iterations": 50,
}


@router.post(
    "",
    summary="Report measured times",
    status_code=201,
    responses={
        201: {"model": ReportResource, "description": "The stored report"},
        **problems(401, 403, 408, 413, 415, 422, 429, 503, 507),
    },
    openapi_extra=json_body(ReportRequest, _EXAMPLE),
)
async def create_report(
    request: Request,
    service: RunningService,
    principal: Reporter,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Store the iteration times that a job measured."""
    report = await receive_small(request, ReportRequest)
    stored = await service.in_database(service.store.add_report, principal.tenant, report, idempotency_key)
    audit("report-stored", principal, report=stored.id)
    service.webhooks.tell_of_drift(principal.tenant, stored)
    return document_answer(stored).response(201)


@router.get("", summary="List reports", response_model=ReportPage, responses=problems(401, 403, 422, 429))
async def list_reports(
    request: Request,
    service: RunningService,
    principal: Reader,
    job: OfJob = None,
    fingerprint: OfFingerprint = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List predicted and measured iteration times, newest first."""
    page = await service.in_database(
        service.store.list_reports, principal.tenant, job, fingerprint, limit, cursor
    )
    return document_answer(page).response_to(request)
