"""Asks the functions of the workers for schedules over servers and predictions, in many variants."""

import itertools
import json
import zlib
from typing import Any

from pace.api.questions.all_kinds import answer_question
from tests.api.profiles import layered_profile
from tests.pace.documents.step_documents import pull_compute_push

_PUSH_PULL = {"kind": "push-pull", "servers": 2, "colocated": True, "worker_bytes_per_s": 1e9}
_LINKS: tuple[dict[str, Any], ...] = (
    *({"discipline": name} for name in ("fifo", "adaptive", "tic", "reverse", "random")),
    *({"discipline": name, "window_bytes": 100} for name in ("window", "first-service-first")),
)
_FLEETS: tuple[dict[str, Any], ...] = (
    {},
    {"speed": [1.0, 2.0], "pull_every": 2},
    {"barrier": "quorum", "quorum": 2, "late": "drop"},
    {"barrier": "staleness", "max_ahead": 1, "leave_s": [0.01, None, None]},
)


def ask_everything() -> None:
    """Ask; answers are for other tests."""
    pushed = layered_profile(12) | {"allreduce": _PUSH_PULL}
    answer_question("schedule", zlib.compress(json.dumps(pushed).encode()), "{}")
    steps = json.loads(pull_compute_push(0.01, 0.001).model_dump_json())
    for link, fleet in itertools.product(_LINKS, _FLEETS):
        asked_steps = steps | {"link": {"bytes_per_s": 1e7, **link}}
        points = {"workers": [1, 3], "servers": [1, 2], "steps": 6, "skip": 1, "seeds": 2, "fleet": fleet}
        answer_question("prediction", zlib.compress(json.dumps(asked_steps).encode()), json.dumps(points))
