"""What worker processes do for simulated fabric runs: read bodies and simulate. From bytes to bytes."""

import json
import zlib
from collections.abc import Callable

from pydantic import ValidationError

from pace.api.errors import ContentTooLarge, InvalidRequest
from pace.api.received import ReceivedFabricRun
from pace.api.workers.ambiguous_documents import refuse_repeated_keys
from pace.api.workers.functions import ReadLimits, decompressed
from pace.client.fabric_documents import FabricPolicyResult, FabricRunRequest, FabricRunResult
from pace.documents.base import explain
from pace.fabric.documents.reading import parse_document
from pace.fabric.documents.scenario import FabricScenario
from pace.fabric.simulation import simulate_fabric

# A simulated second of 30 workers takes some milliseconds.
MOST_WORKER_SECONDS = 1_000_000
MOST_WORKERS = 1000


def read_fabric_run(body: bytes, gzipped: bool, limits: ReadLimits) -> ReceivedFabricRun:
    """Parse and validate the body of a request for simulated runs.

    Raises
    ------
    InvalidRequest, ContentTooLarge
        With the validator's message.
    """
    body = decompressed(body, limits.max_bytes) if gzipped else body
    try:
        request = FabricRunRequest.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise InvalidRequest(explain(error)) from None
    refuse_repeated_keys(body)
    scenario = request.scenario
    worker_seconds = scenario.num_workers * scenario.duration_s * len(request.policies)
    if scenario.num_workers > MOST_WORKERS or worker_seconds > MOST_WORKER_SECONDS:
        raise ContentTooLarge(
            f"{scenario.num_workers} workers for {worker_seconds:.0f} worker-seconds; this service takes "
            f"{MOST_WORKERS} workers and {MOST_WORKER_SECONDS} worker-seconds"
        )
    return ReceivedFabricRun(
        scenario_sha256=scenario.sha256,
        name=scenario.name,
        document=zlib.compress(scenario.model_dump_json().encode(), level=1),
        options=json.dumps(request.policies),
        num_policies=len(request.policies),
    )


def answer_fabric_run(scenario_document: bytes, options: str, tell: Callable[[int], None]) -> bytes:
    """Return the JSON of a FabricRunResult, telling how many policies are done."""
    scenario = parse_document(FabricScenario, zlib.decompress(scenario_document))
    results = []
    for number, policy in enumerate(json.loads(options), start=1):
        results.append(FabricPolicyResult.model_validate(simulate_fabric(scenario, policy).to_document()))
        tell(number)
    return FabricRunResult(policies=tuple(results)).model_dump_json().encode()
