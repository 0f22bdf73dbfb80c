"""Transfer plans in worker processes: from the bytes of a request to the bytes of a plan."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pace.api.errors import ContentTooLarge
from pace.api.questions.reading import read_document
from pace_fabric.service.documents import TransferPlanRequest

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
    from pace_fabric.plan import plan_transfers

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


_LINK = {"up_bytes_per_s": 1e6, "down_bytes_per_s": 1e6}
# Of fewer, a bound would be computed with a library that most services do not need.
_NUM_UPDATES = 50
_PLAN: dict[str, Any] = {
    "network": {
        "hosts": [{"name": name, **_LINK} for name in ("a", "b", "c", "server", "replica")],
        "server": "server",
        "replica": "replica",
        "aggregators": ["a"],
    },
    "batch": {
        "version": 1,
        "delay_bound": 2 * _NUM_UPDATES,
        "momentum": 0.9,
        "history_norm": 1.0,
        "divergence": {"kind": "norm", "max": 20},
        "updates": [
            {"id": f"u{number}", "host": "abc"[number % 3], "size_bytes": 1000, "version": 0, "norm": 1.0}
            for number in range(_NUM_UPDATES)
        ],
    },
}
_OPTIONS: tuple[dict[str, Any], ...] = ({}, {"rule": "paper"}, {"order": "search"})


def kernels() -> list[Callable[[], object]]:
    """Return functions that plan something small, each with loops of its own."""
    bodies = (json.dumps(_PLAN | {"options": options}).encode() for options in _OPTIONS)
    return [partial(plan_of, body, False, len(body)) for body in bodies]
