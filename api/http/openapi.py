"""The OpenAPI document: bodies that the routes read themselves, and problems."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from pace.api.http.answers import JSON, PROBLEM_JSON
from pace.api.questions.registry import KINDS
from pace.client.documents import Problem, ReportRequest, SimulationRequest
from pace.client.fabric_documents import TransferPlanRequest
from pace.client.key_documents import KeyRequest
from pace.client.page_documents import WindowRequest
from pace.documents.profile import Profile

_REFERENCE = "#/components/schemas/{model}"
_DESCRIPTIONS = {
    401: "No API key or token, or one that is not valid",
    403: "The API key's scopes do not allow it",
    404: "No such resource",
    408: "The body did not arrive in time",
    409: "In conflict with what is stored, or cancelled",
    413: "Body or profile too large",
    415: "Body of another type",
    422: "Invalid; the detail says what and where",
    429: "Too much at once; Retry-After says when to ask again",
    500: "Failed; not the caller's fault",
    501: "Not installed with this service",
    503: "Not available now",
    507: "The database's disk is full",
}


def json_body(model: type[BaseModel], example: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the body of a route that reads and validates it in another process."""
    reference = {"$ref": _REFERENCE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {JSON: {"schema": reference, "example": example}}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the problems that a route may answer with."""
    content = {PROBLEM_JSON: {"schema": {"$ref": _REFERENCE.format(model="Problem")}}}
    return {status: {"description": _DESCRIPTIONS[status], "content": content} for status in statuses}


def describe(app: FastAPI) -> None:
    """Add to an application's OpenAPI document what FastAPI cannot know."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schemas = generate().setdefault("components", {}).setdefault("schemas", {})
            models: tuple[type[BaseModel], ...] = (
                *(kind.request for kind in KINDS.values()),
                *(kind.resource for kind in KINDS.values()),
                KeyRequest,
                ReportRequest,
                SimulationRequest,
                TransferPlanRequest,
                WindowRequest,
                Profile,
                Problem,
            )
            for model in models:
                schema = model.model_json_schema(ref_template=_REFERENCE)
                for name, definition in schema.pop("$defs", {}).items():
                    schemas.setdefault(name, definition)
                schemas.setdefault(model.__name__, schema)
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way
