"""The FastAPI application: routes put together, errors turned into answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from pace.api import health, schedules
from pace.api.answers import problem_response
from pace.api.openapi import describe
from pace.api.problems import Refused, invalid_request, make_problem, problem_of
from pace.api.request_id import RequestId, current_request_id
from pace.api.service import Service
from pace.api.settings import Settings
from pace.version import __version__

log = structlog.get_logger(__name__)


def create_app(settings: Settings) -> FastAPI:
    """Build the application; it starts its parts with the server and stops them with it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = Service(settings)
        app.state.service = service
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    app = FastAPI(
        title="PACE",
        summary="Schedules gradient all-reduces so that communication hides behind compute",
        version=__version__,
        lifespan=lifespan,
        redoc_url=None,
    )
    app.include_router(health.router)
    app.include_router(schedules.router)
    app.add_exception_handler(Exception, _answer_error)
    for kind in (Refused, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _answer_error)
    app.add_middleware(RequestId)
    describe(app)
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    headers = dict(error.headers or {}) if isinstance(error, Refused | HTTPException) else {}
    match error:
        case HTTPException():
            problem = make_problem("http", error.status_code, str(error.detail))
        case RequestValidationError():
            faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
            problem = invalid_request("\n".join(faults))
        case _:
            problem = problem_of(error)
    if problem.status >= 500:
        log.error("request-failed", problem=problem.model_dump(), exc_info=error)
    named = {"instance": request.url.path, "request_id": current_request_id()}
    return problem_response(problem.model_copy(update=named), headers)
