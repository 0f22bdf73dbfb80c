"""The route /v1/simulations: what an iteration would take under the policies of the field."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from pace.api.errors import InvalidRequest
from pace.api.http.answers import PreparedAnswer
from pace.api.http.body import receive_small
from pace.api.http.openapi import json_body, problems
from pace.api.http.parameters import RunningService
from pace.api.http.security import Submitter
from pace.api.workers.functions import simulation
from pace.client.documents import SimulationRequest, SimulationResult

router = APIRouter(prefix="/v1/simulations")

_EXAMPLE = {"profile_id": "0" * 64, "policies": ["fifo", "ddp", "pace"]}


@router.post(
    "",
    summary="Simulate policies",
    response_model=SimulationResult,
    responses=problems(401, 403, 408, 413, 415, 422, 429, 500, 503),
    openapi_extra=json_body(SimulationRequest, _EXAMPLE),
)
async def create_simulation(request: Request, service: RunningService, principal: Submitter) -> Response:
    """Simulate a stored profile under several policies. Nothing is stored: same request, same answer."""
    asked = await receive_small(request, SimulationRequest)
    profile = await service.read(service.store.get_profile_document, principal.tenant, asked.profile_id)
    if profile is None:
        raise InvalidRequest(f"profile_id: there is no profile {asked.profile_id}")
    return PreparedAnswer.of(
        await service.compute(simulation, profile.document, asked, tenant=principal.tenant)
    ).response()
