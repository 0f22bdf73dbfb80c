"""Routes under /v1/reports: what jobs measured, next to what was predicted."""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from pace.api.answers import document_answer
from pace.api.audit import audit
from pace.api.auth import Reader, Submitter
from pace.api.documents import ReportPage, ReportRequest, ReportResource
from pace.api.openapi import problems
from pace.api.parameters import Cursor, Limit, OfFingerprint, OfJob, RunningService

router = APIRouter(prefix="/v1/reports")


@router.post("", summary="Report measured times", status_code=201, responses=problems(401, 403, 422, 429))
async def create_report(
    service: RunningService, principal: Submitter, report: ReportRequest
) -> ReportResource:
    """Keep the iteration times that a job measured."""
    stored = await asyncio.to_thread(service.store.add_report, principal.tenant, report)
    audit("report-stored", principal, report=stored.id)
    return stored


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
    page = await asyncio.to_thread(
        service.store.list_reports, principal.tenant, job, fingerprint, limit, cursor
    )
    return document_answer(page).response_to(request)
