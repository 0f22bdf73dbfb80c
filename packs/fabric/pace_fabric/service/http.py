"""The fabric's part of the service's interface: the route /v1/transfer-plans, and a view of the web page."""

from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from pace.api.http.answers import PreparedAnswer
from pace.api.http.body import receive_body
from pace.api.http.openapi import json_body, problems
from pace.api.http.pack_parts import HttpPart
from pace.api.http.parameters import RunningService
from pace.api.http.security import Submitter
from pace.api.spool import BodySpool
from pace_fabric.documents.transfer_plan import TransferPlan
from pace_fabric.service.documents import TransferPlanRequest, example_transfer_plan_request
from pace_fabric.service.transfer_plans import plan_of

router = APIRouter(prefix="/v1/transfer-plans", tags=["Transfer plans"])


@router.post(
    "",
    summary="Plan transfers",
    response_model=TransferPlan,
    responses=problems(401, 403, 408, 413, 415, 422, 429, 500, 503),
    openapi_extra=json_body(TransferPlanRequest, example_transfer_plan_request()),
)
async def create_transfer_plan(request: Request, service: RunningService, principal: Submitter) -> Response:
    """Plan the transfers of a batch of updates on a network. Nothing is stored."""
    tenant, settings = principal.tenant, service.settings
    with service.body_limits.body(tenant) as held, BodySpool(settings.spool_folder) as spool:
        gzipped = await receive_body(request, settings.max_body_bytes, spool, held)
        body = spool.take()
        try:
            plan = await service.compute(
                plan_of, body.content, gzipped, settings.max_decoded_bytes, tenant=tenant
            )
        finally:
            body.delete()
    return PreparedAnswer.of(plan).response()


_FOLDER = Path(__file__).parent
HTTP = HttpPart(
    name="fabric",
    tags={
        "Transfer plans": "Plan transfers of updates over unequal links.",
        "Fabric runs": "Simulate asynchronous training over unequal links.",
    },
    routers=(router,),
    examples=_FOLDER / "examples.json",
    web=_FOLDER / "web",
    views={"fabric": "Fabric"},
)
