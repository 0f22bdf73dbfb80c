"""The OpenAPI document: bodies that the routes read themselves, and problems."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from pace.api.answers import JSON, PROBLEM_JSON
from pace.api.documents import Problem, example_profile

_REFERENCE = "#/components/schemas/{model}"
_bodies: dict[str, type[BaseModel]] = {}


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """Describe the body of a route that reads and validates it in another process."""
    _bodies[model.__name__] = model
    content = {
        "schema": {"$ref": _REFERENCE.format(model=model.__name__)},
        "example": {"profile": example_profile(), "options": {"fusion": "pace"}, "job": "two-layers"},
    }
    return {"requestBody": {"required": True, "content": {JSON: content}}}


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
            models: dict[str, type[BaseModel]] = {**_bodies, "Problem": Problem}
            for name, model in models.items():
                schema = model.model_json_schema(ref_template=_REFERENCE)
                for inner, definition in schema.pop("$defs", {}).items():
                    schemas.setdefault(inner, definition)
                schemas.setdefault(name, schema)
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way


_DESCRIPTIONS = {
    400: "Malformed request",
    401: "No API key, or one that is not valid",
    403: "The API key's scopes do not allow it",
    404: "No such resource",
    409: "In conflict with another request",
    413: "Body too large",
    415: "Body of another type",
    422: "Invalid; the detail says what and where",
    429: "Too much at once; Retry-After says when to ask again",
    500: "Failed; not the caller's fault",
    503: "Not available now",
}
