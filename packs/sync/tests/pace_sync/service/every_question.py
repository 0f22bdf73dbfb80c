"""Asks the functions of the workers for every kind of sync plan, in many variants."""

import json
import zlib
from typing import Any

from pace.api.questions.all_kinds import KINDS, answer_question
from pace_sync.service.sync_plans import EXAMPLE_DELTAS, EXAMPLE_OUTER, EXAMPLE_RESHARDING


def ask_everything() -> None:
    """Ask; answers are for other tests."""
    sync: dict[str, Any] = KINDS["sync"].example["sync"]
    for changed in ({}, {"fan_out": "direct"}, {"credit_bytes": 5_000_000}):
        answer_question("sync", _packed(sync | changed), "{}")
    for other in (EXAMPLE_RESHARDING, EXAMPLE_DELTAS):
        answer_question("sync", _packed(other), "{}")
    for torchft in (False, True):
        answer_question("sync", _packed(EXAMPLE_OUTER), json.dumps({"torchft": torchft}))


def _packed(document: dict[str, Any]) -> bytes:
    return zlib.compress(json.dumps(document).encode())
