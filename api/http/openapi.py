"""The OpenAPI document: tags, bodies that the routes read themselves, examples, headers and problems."""

import functools
import json
import threading
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.responses import Response

from pace.api.http.answers import JSON, PROBLEM_JSON
from pace.api.http.pack_parts import http_parts
from pace.api.questions.all_kinds import KINDS
from pace.client.documents import Problem

PATH = "/openapi.json"
DESCRIPTION = """Send a profile of one training iteration, and get a near-optimal communication schedule back.

A POST that takes long answers 202 with a task; its `Location` says where to ask for it. Errors are problem
documents (RFC 9457) of type `application/problem+json`. Equal requests get equal answers."""
_TAGS: list[dict[str, str]] = [
    {"name": "Schedules", "description": "Compute, find and draw communication schedules."},
    {"name": "Profiles", "description": "Store profiles, and convert files of other tools to profiles."},
    {
        "name": "What-ifs",
        "description": "Predict a job on other networks, at other scales and under other policies.",
    },
    {"name": "Headroom", "description": "Estimate how much faster a job could train."},
    {"name": "Graphs", "description": "Plan graphs of sharded training within a memory budget."},
    {"name": "Order checks", "description": "Prove that a job's collectives cannot hang."},
    {
        "name": "Simulations",
        "description": "Simulate one iteration under several policies; nothing is stored.",
    },
    {"name": "Tasks", "description": "Follow and cancel work that takes long."},
    {"name": "Jobs and reports", "description": "List training jobs and the iteration times they measured."},
    {"name": "Keys and usage", "description": "Manage API keys (scope `admin`), and see limits and usage."},
    {"name": "Operation", "description": "Watch the service; no API key is needed."},
]
# Success answers of a real service, by operation, status and media type; `tests/api/test_openapi.py` writes
# it.
EXAMPLES = Path(__file__).with_name("examples.json")

_REFERENCE = "#/components/schemas/{model}"
_DESCRIPTIONS = {
    401: "The API key or token is missing or not valid",
    403: "The API key's scopes do not allow this request, or the tenant's storage quota is used up",
    404: "There is no such resource",
    408: "The body did not arrive in time",
    409: "The request conflicts with what is stored, or its task was cancelled",
    413: "The body, its document or the number of simulations is too large",
    415: "The body has an unsupported type or encoding",
    422: "The request is not valid, or its work needs more time or memory than allowed; see `detail`",
    429: "Too many requests or too much work at once; `Retry-After` says when to try again",
    500: "The service failed; the request may be valid",
    501: "The service is installed without what this needs; `detail` names it",
    503: "The service is not available now; try again",
    507: "The disk of the database, or of large bodies, is full or cannot be written",
}
_TEXT: dict[str, Any] = {"schema": {"type": "string"}}
_NUMBER: dict[str, Any] = {"schema": {"type": "integer"}}
_HEADERS: dict[str, dict[str, Any]] = {
    "X-Request-Id": {"description": "Identifier of the request, also in the service's log", **_TEXT},
    "Cache-Control": {"description": "Whether and where the answer may be kept", **_TEXT},
    "X-Content-Type-Options": {"description": "Always `nosniff`", **_TEXT},
    "X-Frame-Options": {"description": "Always `DENY`", **_TEXT},
    "Referrer-Policy": {"description": "Always `no-referrer`", **_TEXT},
    "Content-Security-Policy": {"description": "What a browser may load for the answer", **_TEXT},
    "RateLimit-Limit": {"description": "Requests that the tenant may send in a period", **_NUMBER},
    "RateLimit-Remaining": {"description": "Requests that are left in this period", **_NUMBER},
    "RateLimit-Reset": {"description": "Seconds until the period ends", **_NUMBER},
    "ETag": {"description": "Tag of the body, for `If-None-Match`", **_TEXT},
    "Content-Digest": {"description": "SHA-256 of the body (RFC 9530)", **_TEXT},
    "Location": {"description": "Path of the resource that was created", **_TEXT},
    "Retry-After": {"description": "Seconds after which to try again", **_NUMBER},
    "WWW-Authenticate": {"description": "Always `Bearer`", **_TEXT},
    "Vary": {"description": "Request headers on which the answer depends", **_TEXT},
    "Connection": {"description": "`close` if the connection ends with the answer", **_TEXT},
    "Accept-Encoding": {"description": "Encodings of bodies that the service takes", **_TEXT},
    "X-Accel-Buffering": {"description": "`no`: proxies must pass events on at once", **_TEXT},
}
_ALWAYS = (
    "X-Request-Id",
    "Cache-Control",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "Referrer-Policy",
    "Content-Security-Policy",
)
_RATES = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")
_OF_STATUS = {
    "202": ("Location", "Retry-After"),
    "401": ("WWW-Authenticate",),
    "408": ("Connection",),
    "415": ("Accept-Encoding",),
    "429": ("Retry-After",),
    "503": ("Retry-After",),
}
# Answers without a tag and a digest: they are not documents, or are made anew for every caller.
_UNTAGGED = {"get_chart", "follow_task", "metrics", "healthz"}
# Documents that are answered again and again: a caller who has one gets 304.
_UNCONDITIONAL = {*_UNTAGGED, "get_timeline", "get_usage", "readyz"}
_WITHOUT_LOCATION = {"create_report", "create_key"}
_NEGOTIATED = {f"get_{kind.name.replace('-', '_')}" for kind in KINDS.values() if kind.csv is not None}


def tags() -> list[dict[str, str]]:
    """Return the tags of all operations, those of packs last."""
    of_packs = {name: said for part in http_parts() for name, said in part.tags.items()}
    return [*_TAGS, *({"name": name, "description": said} for name, said in of_packs.items())]


# Bodies that routes read themselves, by the name of their schema: FastAPI does not know them.
_bodies: dict[str, type[BaseModel]] = {}


def json_body(
    model: type[BaseModel],
    example: Mapping[str, Any],
    others: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Describe the body of a route that reads and validates it in another process.

    Parameters
    ----------
    others
        Further examples, by what they are. OpenAPI has one example, or several with names.
    """
    _bodies[model.__name__] = model
    content: dict[str, Any] = {"schema": {"$ref": _REFERENCE.format(model=model.__name__)}}
    if others:
        content["examples"] = {name: {"value": body} for name, body in {"default": example, **others}.items()}
    else:
        content["example"] = example
    return {"requestBody": {"required": True, "content": {JSON: content}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the problems that a route may answer with."""
    content = {PROBLEM_JSON: {"schema": {"$ref": _REFERENCE.format(model="Problem")}}}
    return {status: {"description": _DESCRIPTIONS[status], "content": content} for status in statuses}


# The document, once it is made: whether keys are needed is all that differs between applications.
_made: list[dict[str, Any]] = []


def describe(app: FastAPI, *, needs_keys: bool) -> None:
    """Add to an application's OpenAPI document what FastAPI cannot know: bodies, examples and headers.

    Parameters
    ----------
    needs_keys
        Whether requests need an API key; if not, the document says that they may do without one.
    """
    generate = app.openapi
    # Two threads may ask for it, and the first makes it.
    making = threading.Lock()

    def openapi() -> dict[str, Any]:
        with making:
            if not _made:
                try:
                    made = generate()
                    _add_schemas(made)
                    files = (EXAMPLES, *(part.examples for part in http_parts()))
                    examples = [json.loads(file.read_text(encoding="utf-8")) for file in files]
                    _add_headers_and_examples(made, ChainMap(*examples))
                finally:
                    app.openapi_schema = None  # perhaps only a half was made
                _made.append(made)
            if app.openapi_schema is None:
                app.openapi_schema = _made[0] if needs_keys else _without_need_of_keys(_made[0])
            return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way

    # FastAPI's own route writes the document anew for each request, which takes 10 ms: anybody may ask.
    @functools.cache
    def written() -> bytes:
        return json.dumps(openapi(), ensure_ascii=False, separators=(",", ":")).encode()

    @app.get(PATH, include_in_schema=False)
    async def document() -> Response:
        return Response(written(), media_type=JSON)


def _without_need_of_keys(document: dict[str, Any]) -> dict[str, Any]:
    paths = {
        path: {
            method: operation | {"security": [{}, *operation["security"]]}
            if "security" in operation
            else operation
            for method, operation in methods.items()
        }
        for path, methods in document["paths"].items()
    }
    return document | {"paths": paths}


def _add_schemas(document: dict[str, Any]) -> None:
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    models: tuple[type[BaseModel], ...] = (
        *_bodies.values(),
        *(kind.resource for kind in KINDS.values()),
        Problem,
    )
    for model in models:
        schema = model.model_json_schema(ref_template=_REFERENCE)
        for name, definition in schema.pop("$defs", {}).items():
            schemas.setdefault(name, definition)
        schemas.setdefault(model.__name__, schema)


def _add_headers_and_examples(document: dict[str, Any], examples: Mapping[str, Any]) -> None:
    document["components"]["headers"] = _HEADERS
    for path in document["paths"].values():
        for method, operation in path.items():
            name, responses = operation["operationId"], operation["responses"]
            if method == "get" and name not in _UNCONDITIONAL:
                responses["304"] = {
                    "description": "The caller has this body already, as `If-None-Match` says"
                }
            for status, response in responses.items():
                headers = response.setdefault("headers", {})
                for header in _headers(name, method, status, keyed="security" in operation):
                    headers[header] = {"$ref": f"#/components/headers/{header}"}
                for media, example in examples.get(name, {}).get(status, {}).items():
                    response["content"][media]["example"] = example


def _headers(name: str, method: str, status: str, *, keyed: bool) -> tuple[str, ...]:
    headers = _ALWAYS + (_RATES if keyed else ()) + _OF_STATUS.get(status, ())
    if status in ("200", "201", "202", "304") and name not in _UNTAGGED:
        headers += ("ETag",) if status == "304" else ("ETag", "Content-Digest")
    if status == "201" and name not in _WITHOUT_LOCATION:
        headers += ("Location",)
    if status == "503" and name == "readyz":
        headers += ("ETag", "Content-Digest")
    if method == "get" and status in ("200", "304") and name in _NEGOTIATED:
        headers += ("Vary",)
    if name == "follow_task" and status == "200":
        headers += ("X-Accel-Buffering", "Connection")
    return headers
