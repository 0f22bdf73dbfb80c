"""Receives request bodies within their limit."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from pace.api.errors import BodyTimeout, ContentTooLarge, InvalidRequest, UnsupportedMediaType
from pace.api.fairness.body_limits import HeldBody
from pace.api.questions.ambiguous_documents import refuse_repeated_keys
from pace.api.service import Service
from pace.api.spool import IN_MEMORY_BYTES, BodySpool
from pace.api.workers.body_reader import Received
from pace.documents.base import explain

MAX_SMALL_BYTES = 20_000

D = TypeVar("D", bound=BaseModel)


async def receive_small(request: Request, document: type[D]) -> D:
    """Read and validate a body that is too small to need a reader process."""
    with BodySpool() as spool:
        gzipped = await receive_body(request, MAX_SMALL_BYTES, spool)
        body = spool.take()
    if gzipped:
        raise UnsupportedMediaType("expected a body without compression, as it is small")
    assert isinstance(body.content, bytes)
    try:
        received = document.model_validate_json(body.content, strict=True)
    except ValidationError as error:
        raise InvalidRequest(explain(error)) from None
    refuse_repeated_keys(body.content)
    return received


async def read_body(
    request: Request,
    tenant: str,
    function: Callable[..., Received],
    *arguments: str,
    media_types: tuple[str, ...] = (),
) -> Received:
    """Read a tenant's body in a reader process and return the function's result.

    Parameters
    ----------
    arguments
        Further arguments of the function, after body, compression and limits.
    media_types
        Types accepted besides JSON. Pages of other sites must not be able to send them without permission
        (CORS), so neither text/plain nor the types of forms.

    Raises
    ------
    QueueFull
        If too many bodies, or too many bytes of them, are being received or wait.
    Refused
        In the cases of ``receive_body``, and what the function raises.
    """
    service: Service = request.app.state.service
    with service.body_limits.body(tenant) as held, BodySpool(service.settings.spool_folder) as spool:
        most_bytes = service.settings.max_body_bytes
        gzipped = await receive_body(request, most_bytes, spool, held, media_types)
        body = spool.take()
        service.metrics.tenants.count_body(tenant, body.size_bytes)
        return await service.body_reader.read(function, body, gzipped, tenant, *arguments)


async def receive_body(
    request: Request,
    max_bytes: int,
    spool: BodySpool,
    held: HeldBody | None = None,
    media_types: tuple[str, ...] = (),
) -> bool:
    """Write the body to a spool; return whether it is compressed by gzip. `held` counts its bytes.

    Raises
    ------
    BodyTimeout
        If it does not arrive in time.
    ContentTooLarge
        If more than `max_bytes` are announced or received.
    UnsupportedMediaType
        If the body is neither JSON nor of the `media_types`, or has an unknown encoding.
    SpoolFull
        If the disk has no room for it.
    """
    # JSON is never assumed: a page of another site can send a body without a type, but JSON only with
    # permission.
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    accepted = ("application/json", *media_types)
    if media_type not in accepted and not media_type.endswith("+json"):
        raise UnsupportedMediaType(f'"{media_type}" is not {" or ".join(accepted)}')
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        detail = f'the content encoding "{encoding}" is neither gzip nor identity'
        raise UnsupportedMediaType(detail, accepted_encoding="gzip")
    too_large = ContentTooLarge(f"the body is larger than {max_bytes} bytes")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise too_large
    received = 0
    timeout_s: float = request.app.state.service.settings.body_timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                received += len(chunk)
                if received > max_bytes:
                    raise too_large
                if held is None:
                    spool.write(chunk)
                    continue
                held.grow(len(chunk))
                if received <= IN_MEMORY_BYTES:
                    spool.write(chunk)
                    continue
                async with held.bulk():
                    spool.write(chunk)
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive in {timeout_s:g} s") from None
    return encoding == "gzip"
