"""Predictions of throughput: what more workers and servers give, from one worker's steps."""

import json
import zlib

from pace.api.errors import ContentTooLarge
from pace.api.questions.kind import DoneCount, Question, QuestionKind, ReadLimits, Tell
from pace.api.questions.reading import about_document, canonical_json, parser_of
from pace.documents.steps import parse_steps
from pace_servers.documents.prediction import PredictionOptions, ThroughputPrediction
from pace_servers.service.documents import PredictionRequest, PredictionResource, PredictionSummary


def _read(request: PredictionRequest, limits: ReadLimits) -> Question:
    steps, options = request.steps, request.options
    if len(steps.ops) > limits.max_ops:
        raise ContentTooLarge(f"a step has {len(steps.ops)} ops; this service takes at most {limits.max_ops}")
    simulations = options.num_points * options.seeds
    if simulations > limits.max_cells:
        raise ContentTooLarge(f"{simulations} simulations; this service takes at most {limits.max_cells}")
    return Question(
        kind=KIND.name,
        options=canonical_json(options),
        num_steps=options.num_points,
        **about_document(steps.sha256, steps.name, steps.model_dump_json(exclude_none=True)),
    )


def _answer(steps_document: bytes, options: str, tell: Tell) -> bytes:
    from pace_servers.throughput import predict  # the serving process only names this function

    # One thread: predictions share a machine with solves.
    steps = parse_steps(zlib.decompress(steps_document))
    asked = PredictionOptions.model_validate_json(options)
    return predict(steps, asked, threads=1, progress=DoneCount(tell)).model_dump_json().encode()


def _csv(document: bytes) -> bytes:
    return ThroughputPrediction.model_validate_json(document).to_csv().encode()


_SAMPLE = {
    "name": "warm-up",
    "servers": 2,
    "ops": [
        {"name": "down", "resource": "downlink", "size_bytes": 1000},
        {"name": "both", "resource": "worker", "deps": ["down"]},
        {"name": "up", "resource": "uplink", "size_bytes": 1000, "deps": ["both"]},
        {"name": "update", "resource": "ps", "deps": ["up"]},
    ],
    "steps": [{"duration_s": [0, 0.001, 0, 0.0001]}],
}
_LINKS: tuple[dict[str, object], ...] = (
    {"discipline": "fifo"},
    {"discipline": "window", "window_bytes": 100},
    {"discipline": "tic"},
)
_SAMPLE_OPTIONS = json.dumps({"workers": [2], "steps": 3, "skip": 1, "seeds": 1, "advice": False})

KIND = QuestionKind(
    name="prediction",
    noun="prediction",
    path="/v1/predictions",
    tag="Predictions",
    title="Predict throughput",
    description="Predict throughput for every requested number of workers, servers and bandwidth. "
    "An equal request gets the stored answer.",
    example={
        "steps": {
            "name": "one layer",
            "batch": 32,
            "ops": [
                {"name": "down/w", "resource": "downlink", "size_bytes": 4000000},
                {"name": "compute", "resource": "worker", "deps": ["down/w"]},
                {"name": "up/w", "resource": "uplink", "size_bytes": 4000000, "deps": ["compute"]},
            ],
            "steps": [{"duration_s": [0, 0.8, 0]}, {"duration_s": [0, 1.2, 0]}],
            "link": {"bytes_per_s": 12000000.0},
        },
        "options": {"workers": [1, 2, 4], "steps": 40, "skip": 5, "seeds": 2},
    },
    request=PredictionRequest,
    resource=PredictionResource,
    summary=PredictionSummary,
    columns={"name": "input_name", "steps_sha256": "input_sha256", "num_points": "num_steps"},
    parts={"steps": parse_steps, "options": parser_of(PredictionOptions)},
    read=_read,
    answer=_answer,
    samples=tuple((_SAMPLE | {"link": {"bytes_per_s": 1e6, **link}}, _SAMPLE_OPTIONS) for link in _LINKS),
    csv=_csv,
)
KINDS = (KIND,)
