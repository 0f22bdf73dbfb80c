"""The FastAPI application: routes put together, errors turned into answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from pace.api import health, profiles, reports, schedules, simulations, task_routes, what_ifs
from pace.api.docs_page import add_docs
from pace.api.lane import Lane
from pace.api.metrics import Metrics
from pace.api.middleware import Envelope, error_response
from pace.api.openapi import describe
from pace.api.problems import Refused, invalid_request, make_problem
from pace.api.service import Service
from pace.api.settings import Settings
from pace.api.tracing import trace
from pace.version import __version__

log = structlog.get_logger(__name__)


def create_app(settings: Settings) -> FastAPI:
    """Build the application; it starts its parts with the server and stops them with it."""
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = Service(settings, metrics, spans)
        app.state.service = service
        await service.start()
        try:
            yield
        finally:
            await service.stop()
            spans.close()

    app = FastAPI(
        title="PACE",
        summary="Schedules gradient all-reduces so that communication hides behind compute",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    for routes in (health, profiles, schedules, task_routes, what_ifs, simulations, reports):
        app.include_router(routes.router)
    for kind in (Refused, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _answer_error)
    app.add_middleware(Lane)
    app.add_middleware(Envelope, metrics=metrics, docs_policy=add_docs(app))
    describe(app)
    spans = trace(app)
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    # Everything else goes up to the Envelope, which answers it in the same way.
    match error:
        case HTTPException():
            error = Refused(make_problem("http", error.status_code, str(error.detail)), error.headers)
        case RequestValidationError():
            faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
            error = Refused(invalid_request("\n".join(faults)))
        case Refused() if error.problem.status >= 500:
            log.error("request-failed", problem=error.problem.model_dump())
        case _:
            pass
    return error_response(error, request.scope)
