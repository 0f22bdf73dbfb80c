"""The FastAPI application: collects the routes and converts errors to answers."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Mount

from pace.api.fairness.loop_shares import LoopShares
from pace.api.http.fast_path import Application, ReadsFromMemory, answer_frequent
from pace.api.http.hosts import HostCheck
from pace.api.http.middleware import Envelope, error_response
from pace.api.http.openapi import DESCRIPTION, describe, tags
from pace.api.http.pack_parts import http_parts
from pace.api.http.question_answers import QuestionAnswers
from pace.api.http.routes import (
    health,
    jobs,
    keys,
    profiles,
    questions,
    reports,
    schedules,
    simulations,
)
from pace.api.http.routes import tasks as task_routes
from pace.api.http.static_pages import DOCS, PAGE, add_docs, add_page
from pace.api.metrics import Metrics
from pace.api.problems import problem_of
from pace.api.service import Service
from pace.api.settings import Settings
from pace.api.tracing import trace
from pace.errors import PaceError
from pace.gc_pause import freeze_what_is_loaded
from pace.version import __version__

log = structlog.get_logger(__name__)


def create_app(settings: Settings) -> Application:
    """Build the application, which starts and stops the service with the server."""
    metrics = Metrics(settings.metrics_tenants)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service = Service(settings, metrics, spans)
        app.state.service = service
        app.state.question_answers = answers = QuestionAnswers(service)
        await service.start()
        if app.fast is not None and settings.audit != "all":
            app.reads = ReadsFromMemory(service, answers, hosts, shares)
        # These objects stay alive: freezing them keeps the garbage collector from scanning them during
        # requests.
        freeze_what_is_loaded()
        # Collect again: the next full collection then starts only after few new objects.
        gc.collect()
        describing = asyncio.create_task(asyncio.to_thread(_describe, app))
        try:
            yield
        finally:
            await service.stop()
            spans.close()
            await describing

    app = Application(
        title="PACE",
        summary="Schedules the gradient communication of distributed training",
        description=DESCRIPTION,
        openapi_tags=tags(),
        generate_unique_id_function=lambda route: route.name,
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        servers=[{"url": "."}],  # beside the document: a proxy may serve it under a path of its own
        redirect_slashes=False,  # a redirect would name the caller's Host
    )
    for routes in (
        health,
        profiles,
        schedules,
        questions,
        task_routes,
        simulations,
        jobs,
        reports,
        keys,
    ):
        app.include_router(routes.router)
    for part in http_parts():
        for router in part.routers:
            app.include_router(router)
    for kind in (PaceError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _answer_error)
    allowed: dict[str, Any] = {"allowed": settings.allowed_host_names, "loopback": not settings.needs_keys}
    app.add_middleware(HostCheck, **allowed)
    hosts = HostCheck(answer_frequent, **allowed)
    # Without keys there is one tenant.
    shares = None
    if settings.needs_keys:
        shares = LoopShares(settings.tenants, metrics.turn_observer("event loop"))
    app.state.loop_shares = shares
    policies = {DOCS: add_docs(app), PAGE: add_page(app)}
    app.add_middleware(Envelope, metrics=metrics, policies=policies, shares=shares)
    describe(app, needs_keys=settings.needs_keys)
    spans = trace(app)
    if not spans.wanted:
        # The framework's layers create spans.
        app.fast = Envelope(hosts, metrics, {}, shares)
    return app


def _describe(app: FastAPI) -> None:
    """Make the OpenAPI document before it is asked for: it takes a quarter of a second."""
    app.openapi()
    gc.collect()
    gc.freeze()


async def _answer_error(request: Request, error: Exception) -> Response:
    # The Envelope answers all other errors in the same way.
    problem = problem_of(error)
    if problem.status >= 500:
        log.error("request-failed", problem=problem.model_dump())
    response = error_response(error, request.scope)
    if problem.status == HTTPStatus.METHOD_NOT_ALLOWED:
        # Each route has one method, and the error names only that of the path's first route.
        response.headers["Allow"] = ", ".join(_methods_of(request))
    return response


def _methods_of(request: Request) -> list[str]:
    found = set()
    # Mounts of static files change the root path inside them.
    scope = {**request.scope, "root_path": request.scope.get("app_root_path", request.scope["root_path"])}
    for method in ("DELETE", "GET", "PATCH", "POST", "PUT"):
        asked = {**scope, "method": method}
        for route in request.app.routes:
            # Mounts match every method, but only GET and HEAD are allowed.
            if (method == "GET" or not isinstance(route, Mount)) and route.matches(asked)[0] is Match.FULL:
                found |= {"GET", "HEAD"} if method == "GET" else {method}
    return sorted(found)
