"""What worker processes do for predictions of throughput: read bodies and simulate. From bytes to bytes."""

import json
import zlib
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from pace.api.errors import ContentTooLarge, InvalidRequest
from pace.api.received import ReceivedPrediction
from pace.api.workers.ambiguous_documents import refuse_repeated_keys
from pace.api.workers.functions import DoneCount, ReadLimits, canonical_json, decompressed
from pace.client.prediction_documents import PredictionRequest
from pace.documents.base import explain
from pace.documents.throughput.prediction import PredictionOptions, ThroughputPrediction
from pace.documents.throughput.steps import parse_steps
from pace.errors import InvalidOptions
from pace.throughput import predict


def read_prediction(body: bytes, gzipped: bool, limits: ReadLimits) -> ReceivedPrediction:
    """Parse and validate the body of a request for a prediction.

    Raises
    ------
    InvalidSteps, InvalidOptions, InvalidRequest, ContentTooLarge
        With the validator's message; more simulations than the limit of cells are too large.
    """
    body = decompressed(body, limits.max_bytes) if gzipped else body
    try:
        request = PredictionRequest.model_validate_json(body, strict=True)
    except ValidationError as error:
        _explain(body, error)
        raise InvalidRequest(explain(error)) from None
    refuse_repeated_keys(body)
    if len(request.steps.ops) > limits.max_ops:
        raise ContentTooLarge(f"a step has {len(request.steps.ops)} ops; this service takes {limits.max_ops}")
    simulations = request.options.num_points * request.options.seeds
    if simulations > limits.max_cells:
        raise ContentTooLarge(f"{simulations} simulations; this service takes {limits.max_cells}")
    return ReceivedPrediction(
        steps_sha256=request.steps.sha256,
        name=request.steps.name,
        # Without fields that say nothing, the version before can do tasks of this one.
        document=zlib.compress(request.steps.model_dump_json(exclude_none=True).encode(), level=1),
        options=canonical_json(request.options, exclude_none=True),
        num_points=request.options.num_points,
    )


def answer_prediction(steps_document: bytes, options: str, tell: Callable[[int], None]) -> bytes:
    """Return the JSON of a ThroughputPrediction, telling now and then how many points are done."""
    # One thread: predictions share a machine with solves.
    steps = parse_steps(zlib.decompress(steps_document))
    result = predict(
        steps, PredictionOptions.model_validate_json(options), threads=1, progress=DoneCount(tell)
    )
    return result.model_dump_json().encode()


def prediction_csv(document: bytes) -> bytes:
    """Return a stored prediction's points as CSV, as ``ThroughputPrediction.to_csv`` writes them."""
    return ThroughputPrediction.model_validate_json(document).to_csv().encode()


def _explain(body: bytes, error: ValidationError) -> None:
    # As for profiles: the documents' own parsers name the op at fault.
    try:
        document: Any = json.loads(body)
    except (ValueError, RecursionError):
        return
    if not isinstance(document, dict):
        return
    faults = error.errors(include_url=False, include_input=False)
    places = {fault["loc"][0] for fault in faults if fault["loc"]}
    if "steps" in places and "steps" in document:
        parse_steps(json.dumps(document["steps"]))
    if "options" in places and "options" in document:
        try:
            PredictionOptions.model_validate_json(json.dumps(document["options"]), strict=True)
        except ValidationError as fault:
            raise InvalidOptions(explain(fault)) from None
