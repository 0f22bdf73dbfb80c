"""What worker processes do for transfer plans: from the bytes of a request to those of a plan."""

import zlib
from pathlib import Path

from pydantic import ValidationError

from pace.api.errors import ContentTooLarge, InvalidRequest
from pace.api.workers.ambiguous_documents import refuse_repeated_keys
from pace.client.fabric_documents import TransferPlanRequest
from pace.documents.base import explain
from pace.fabric.plan import plan_transfers

# A plan of this many takes seconds, and its document some megabytes.
MOST_UPDATES = 2000
MOST_HOSTS = 2000


def plan_of(body: bytes | Path, gzipped: bool, max_bytes: int) -> bytes:
    """Return the transfer plan that a request asks for.

    Raises
    ------
    InvalidRequest, InvalidFabric, InvalidOptions, ContentTooLarge
        With the validator's message.
    """
    body = body if isinstance(body, bytes) else body.read_bytes()
    if gzipped:
        decompressor = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        try:
            body = decompressor.decompress(body, max_bytes + 1)
        except zlib.error:
            raise InvalidRequest("the body is not gzip, as Content-Encoding says") from None
        if len(body) > max_bytes:
            raise ContentTooLarge(f"the body is larger than {max_bytes} bytes once decompressed")
    try:
        request = TransferPlanRequest.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise InvalidRequest(explain(error)) from None
    refuse_repeated_keys(body)
    num_updates = len(request.batch.updates) + len(request.batch.punted)
    for what, count, most in (
        ("updates", num_updates, MOST_UPDATES),
        ("hosts", len(request.network.hosts), MOST_HOSTS),
    ):
        if count > most:
            raise ContentTooLarge(f"the request has {count} {what}; this service takes {most}")
    return plan_transfers(request.network, request.batch, request.options).to_json()
