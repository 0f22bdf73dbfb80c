"""Transfer plans in worker processes: from the bytes of a request to the bytes of a plan."""

from pathlib import Path

from pace.api.errors import ContentTooLarge
from pace.api.questions.reading import read_document
from pace.client.fabric_documents import TransferPlanRequest

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
    # Its libraries are large: the serving process, which only names this function, does without them.
    from pace.fabric.plan import plan_transfers

    body = body if isinstance(body, bytes) else body.read_bytes()
    request = read_document(body, gzipped, max_bytes, TransferPlanRequest)
    num_updates = len(request.batch.updates) + len(request.batch.punted)
    for what, count, most in (
        ("updates", num_updates, MOST_UPDATES),
        ("hosts", len(request.network.hosts), MOST_HOSTS),
    ):
        if count > most:
            raise ContentTooLarge(f"the request has {count} {what}; this service takes at most {most}")
    return plan_transfers(request.network, request.batch, request.options).to_json()
