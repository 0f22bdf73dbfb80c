"""Builds answers from stored bytes: a stored document is never parsed to be sent again."""

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from pace.api.documents import Problem
from pace.api.store import StoredSchedule

JSON = "application/json"
PROBLEM_JSON = "application/problem+json"


def schedule_bytes(stored: StoredSchedule) -> bytes:
    """Return the JSON of a ScheduleResource."""
    head: dict[str, Any] = {
        "id": stored.id,
        "job": stored.job,
        "fingerprint": stored.fingerprint,
        "profile_sha256": stored.profile_sha256,
        "created_at": stored.created_at.isoformat(),
    }
    return json.dumps(head)[:-1].encode() + b', "schedule": ' + stored.document.rstrip() + b"}\n"


def json_response(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with JSON and the digest (RFC 9530) by which the client knows that all of it arrived."""
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    return Response(
        body,
        status,
        media_type=JSON,
        headers={"Content-Digest": f"sha-256=:{digest}:", **(headers or {})},
    )


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with a problem document."""
    body = problem.model_dump_json(exclude_none=True).encode()
    return Response(body, problem.status, media_type=PROBLEM_JSON, headers=dict(headers or {}))
