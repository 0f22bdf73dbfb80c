"""Receives request bodies within their limit."""

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from pace.api.problems import Refused, faults_of, invalid_request, make_problem, too_large

MAX_SMALL_BYTES = 20_000

D = TypeVar("D", bound=BaseModel)


async def receive_small(request: Request, document: type[D]) -> D:
    """Return a document that is never large enough to need a reader process; raises Refused."""
    body, gzipped = await receive_body(request, MAX_SMALL_BYTES)
    if gzipped:
        raise Refused(make_problem("unsupported-media-type", 415, "too small a body to be compressed"))
    try:
        return document.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise Refused(invalid_request(faults_of(error))) from None


async def receive_body(request: Request, max_bytes: int) -> tuple[bytes, bool]:
    """Return the body as sent, and whether it is compressed by gzip.

    Raises
    ------
    Refused
        413 as soon as more than `max_bytes` are announced or arrive; 415 if it is not JSON or
        encoded in another way.
    """
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise Refused(make_problem("unsupported-media-type", 415, f'"{media_type}" is not application/json'))
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        detail = f'the content encoding "{encoding}" is neither gzip nor identity'
        raise Refused(make_problem("unsupported-media-type", 415, detail), {"Accept-Encoding": "gzip"})
    problem = too_large(f"the body is larger than {max_bytes} bytes")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise Refused(problem)
    chunks = []
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received > max_bytes:
            raise Refused(problem)
        chunks.append(chunk)
    return b"".join(chunks), encoding == "gzip"
