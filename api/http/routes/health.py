"""Routes to watch the service. They need no API key."""

import asyncio
import hmac

import structlog
from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy import text
from starlette.responses import Response

from pace.api.http.answers import document_answer
from pace.api.http.parameters import RunningService
from pace.api.logs import brief
from pace.api.service import Service
from pace.client.documents import Health, Readiness
from pace.version import __version__

router = APIRouter(tags=["Operation"])
log = structlog.get_logger(__name__)


@router.get("/healthz", summary="Check that the service is alive")
async def healthz() -> Health:
    """Answer 200 as long as the service process handles requests, even without a database or workers."""
    return Health(version=__version__)


@router.get(
    "/readyz",
    summary="Check that the service is ready",
    response_model=Readiness,
    responses={503: {"model": Readiness, "description": "A part is missing; the body says which"}},
)
async def readyz(service: RunningService) -> Response:
    """Check that the database, object storage and worker processes answer."""

    def ask_database() -> None:
        with service.database.read() as connection:
            connection.execute(text("SELECT 1"))

    database, workers, objects = "ok", "ok", "ok"
    try:
        await service.in_database(ask_database)
    except Exception as error:  # whatever it is, the answer is "not ready"
        log.warning("database-not-ready", error=brief(error))
        database = "does not answer"
    try:
        await service.documents.check()
    except Exception as error:
        log.warning("objects-not-ready", error=str(error))
        objects = "does not answer"
    if (missing := service.pools.missing()) is not None:
        workers = f"no {missing} process is alive"
    ready = database == workers == objects == "ok"
    answer = document_answer(Readiness(ready=ready, database=database, workers=workers, objects=objects))
    return answer.response(200 if ready else 503)


@router.get(
    "/metrics",
    summary="Get metrics for Prometheus",
    response_class=Response,
    responses={
        200: {
            "content": {"text/plain": {"schema": {"type": "string"}}},
            "description": "Metrics in Prometheus' text format",
        }
    },
)
async def metrics(request: Request, service: RunningService) -> Response:
    """Return the metrics of this service process, those by tenant only with `PACE_METRICS_TOKEN`."""
    await service.queue_counts.refresh()
    body = await asyncio.to_thread(service.metrics.render, tenants=_may_see_tenants(request, service))
    return Response(body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _may_see_tenants(request: Request, service: Service) -> bool:
    token = service.settings.metrics_token.get_secret_value()
    if not token:
        return not service.settings.needs_keys
    sent = request.headers.get("authorization", "")
    return hmac.compare_digest(sent.encode(), f"Bearer {token}".encode())
