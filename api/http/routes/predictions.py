"""Routes under /v1/predictions: what more workers and servers give, from one worker's steps."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from pace.api.errors import NotFound, ResultDeleted
from pace.api.http.answers import JSON, PreparedAnswer, document_answer, prediction_answer
from pace.api.http.audit import audit
from pace.api.http.body import read_body
from pace.api.http.openapi import json_body, problems
from pace.api.http.parameters import Cursor, Limit, RunningService
from pace.api.http.routes.tasks import unfinished, wait_for_task
from pace.api.http.security import Admin, Reader, Submitter
from pace.api.storage.questions import StoredAnswer
from pace.api.workers.predictions import prediction_csv, read_prediction
from pace.client.documents import ResourceId, TaskResource
from pace.client.prediction_documents import PredictionPage, PredictionRequest, PredictionResource

router = APIRouter(prefix="/v1/predictions")

CSV = "text/csv"
PredictionId = Annotated[ResourceId, Path()]
_EXAMPLE = {
    "steps": {
        "name": "one layer",
        "batch": 32,
        "ops": [
            {"name": "down/w", "resource": "downlink", "size_bytes": 4000000},
            {"name": "compute", "resource": "worker", "deps": ["down/w"]},
            {"name": "up/w", "resource": "uplink", "size_bytes": 4000000, "deps": ["compute"]},
        ],
        "steps": [{"duration_s": [0, 0.8, 0]}, {"duration_s": [0, 1.2, 0]}],
        "link": {"bytes_per_s": 12000000.0},
    },
    "options": {"workers": [1, 2, 4], "steps": 40, "skip": 5, "seeds": 2},
}


@router.post(
    "",
    summary="Predict throughput",
    status_code=201,
    responses={
        201: {"model": PredictionResource, "description": "The answer; Location says where it stays"},
        202: {"model": TaskResource, "description": "Not answered within the wait; Location is the task's"},
        **problems(401, 403, 408, 409, 413, 415, 422, 429, 500, 503, 507),
    },
    openapi_extra=json_body(PredictionRequest, _EXAMPLE),
)
async def create_prediction(request: Request, service: RunningService, principal: Submitter) -> Response:
    """Predict throughput at every scale that is asked for. The same question is answered only once.

    ``Prefer`` is as for schedules. The task's ``/events`` tell how far it is; DELETE of the task ends it.
    """
    tenant = principal.tenant
    received = await read_body(request, tenant, read_prediction)
    submitted = await service.submit(tenant, received)
    audit("prediction-requested", principal, prediction=submitted.result_id, steps=received.steps_sha256)
    stored = submitted.result
    if stored is None:
        status = await wait_for_task(service, tenant, submitted, request.headers.get("prefer", ""))
        if status is not None and status.live:
            return unfinished(status)
        stored = await service.read(service.predictions.get, tenant, submitted.result_id)
    if not isinstance(stored, StoredAnswer):
        raise ResultDeleted("the answer was deleted while it was made; send it again")
    answer = await asyncio.to_thread(prediction_answer, stored)
    return answer.response(201, {"Location": f"/v1/predictions/{submitted.result_id}"})


@router.get(
    "", summary="List predictions", response_model=PredictionPage, responses=problems(401, 403, 422, 429)
)
async def list_predictions(
    request: Request, service: RunningService, principal: Reader, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """List predictions without their content, newest first."""
    page = await service.in_database(service.predictions.list, principal.tenant, limit, cursor)
    return document_answer(page).response_to(request)


@router.get(
    "/{prediction_id}",
    summary="Get a prediction",
    response_class=Response,
    responses={
        200: {
            "content": {
                JSON: {"schema": {"$ref": "#/components/schemas/PredictionResource"}},
                CSV: {"schema": {"type": "string"}},
            },
            "description": "The answer; its points alone as CSV if the caller accepts nothing but that",
        },
        **problems(401, 403, 404, 422, 429, 500, 503),
    },
)
async def get_prediction(
    request: Request, service: RunningService, principal: Reader, prediction_id: PredictionId
) -> Response:
    """Return a stored prediction."""
    stored = await service.read(service.predictions.get, principal.tenant, prediction_id)
    if stored is None:
        raise NotFound(f'there is no prediction "{prediction_id}"')
    varies = {"Vary": "Accept"}
    if request.headers.get("accept", "").partition(";")[0].strip().lower() == CSV:
        text = await service.compute(prediction_csv, stored.document, tenant=principal.tenant)
        return PreparedAnswer.of(text, f"{CSV}; charset=utf-8").response_to(request, varies)
    return (await asyncio.to_thread(prediction_answer, stored)).response_to(request, varies)


@router.delete(
    "/{prediction_id}",
    summary="Delete a prediction",
    status_code=204,
    responses=problems(401, 403, 404, 422, 429),
)
async def delete_prediction(service: RunningService, principal: Admin, prediction_id: PredictionId) -> None:
    """Delete a stored prediction and the steps that it was made from."""
    if not await service.in_database(service.predictions.delete, principal.tenant, prediction_id):
        raise NotFound(f'there is no prediction "{prediction_id}"')
    audit("prediction-deleted", principal, prediction=prediction_id)
