"""Routes under /v1/simulations: an iteration under the policies of the field, its length and its course."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from pace.api.errors import InvalidRequest, NotFound
from pace.api.http.answers import PreparedAnswer
from pace.api.http.body import receive_small
from pace.api.http.openapi import json_body, problems
from pace.api.http.parameters import RunningService
from pace.api.http.routes.questions import not_found
from pace.api.http.security import Submitter
from pace.api.questions.all_kinds import KINDS
from pace.api.questions.kind import SCHEDULE
from pace.api.workers.drawings import graph_windows, simulation, windows
from pace.client.documents import SimulationRequest, SimulationResult
from pace.client.graph_documents import GraphWindowRequest, GraphWindowResult
from pace.client.page_documents import WindowRequest, WindowResult

router = APIRouter(prefix="/v1/simulations", tags=["Simulations"])

_EXAMPLE = {"profile_id": "0" * 64, "policies": ["fifo", "ddp", "pace"]}


@router.post(
    "",
    summary="Simulate policies",
    response_model=SimulationResult,
    responses=problems(401, 403, 408, 413, 415, 422, 429, 500, 503),
    openapi_extra=json_body(SimulationRequest, _EXAMPLE),
)
async def create_simulation(request: Request, service: RunningService, principal: Submitter) -> Response:
    """Simulate a stored profile under several policies and return iteration times. Nothing is stored."""
    asked = await receive_small(request, SimulationRequest)
    profile = await service.read(service.store.get_profile_document, principal.tenant, asked.profile_id)
    if profile is None:
        raise InvalidRequest(f"profile_id: there is no profile {asked.profile_id}")
    return PreparedAnswer.of(
        await service.compute(simulation, profile.document, asked, tenant=principal.tenant)
    ).response()


@router.post(
    "/windows",
    summary="Get the times of ops and transfers",
    response_model=WindowResult,
    responses=problems(401, 403, 404, 408, 413, 415, 422, 429, 500, 503),
    openapi_extra=json_body(WindowRequest, _EXAMPLE),
)
async def create_windows(request: Request, service: RunningService, principal: Submitter) -> Response:
    """Return when every op and transfer runs, under a schedule and under policies. Nothing is stored."""
    asked, tenant = await receive_small(request, WindowRequest), principal.tenant
    profile = await service.read(service.store.get_profile_document, tenant, asked.profile_id)
    if profile is None:
        raise InvalidRequest(f"profile_id: there is no profile {asked.profile_id}")
    schedule: bytes | None = None
    if asked.schedule_id is not None:
        found = await service.read(service.questions.get, tenant, KINDS[SCHEDULE], asked.schedule_id)
        if found is None:
            raise NotFound(f'there is no schedule "{asked.schedule_id}"')
        if found.input_sha256 != asked.profile_id:
            raise InvalidRequest(f"schedule_id: this schedule is for another profile, {found.input_sha256}")
        schedule = found.document
    return PreparedAnswer.of(
        await service.compute(windows, profile.document, schedule, asked, tenant=tenant)
    ).response()


@router.post(
    "/graph-windows",
    summary="Get the times of a graph's ops and collectives",
    response_model=GraphWindowResult,
    responses=problems(401, 403, 404, 408, 413, 415, 422, 429, 500, 503),
    openapi_extra=json_body(GraphWindowRequest, {"schedule_id": "0" * 32, "policies": ["as-traced"]}),
)
async def create_graph_windows(request: Request, service: RunningService, principal: Submitter) -> Response:
    """Return when ops, copies and collectives of a graph run, and the memory in use. Nothing is stored.

    Rows are those of a stored schedule and of policies.
    """
    asked, tenant = await receive_small(request, GraphWindowRequest), principal.tenant
    kind = KINDS["graph"]
    found = await service.in_database(service.questions.get_documents, tenant, kind, asked.schedule_id)
    if found is None:
        raise not_found(kind, asked.schedule_id)
    graph, schedule = [(await service.documents.whole(each)).document for each in found]
    return PreparedAnswer.of(
        await service.compute(graph_windows, graph, schedule, asked, tenant=tenant)
    ).response()
