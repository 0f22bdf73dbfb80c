"""Asks the functions of the workers everything that a request can ask a fabric for, in many variants."""

import json
import zlib
from pathlib import Path

from pace.api.questions.all_kinds import answer_question
from pace_fabric.service.transfer_plans import plan_of
from pace_fabric.simulation import FABRIC_POLICIES

_EXAMPLES = Path(__file__).parents[3] / "examples"


def ask_everything() -> None:
    """Ask; answers are for other tests."""
    scenario = json.dumps({"name": "small", "machines": 3, "duration_s": 3, "delay_bound": 10})
    answer_question("fabric-run", zlib.compress(scenario.encode()), json.dumps(list(FABRIC_POLICIES)))
    plan = {name: json.loads((_EXAMPLES / f"{name}.json").read_text()) for name in ("network", "batch")}
    for late in ("hold", "drop", "pace"):
        plan_of(json.dumps(plan | {"options": {"late": late}}).encode(), False, 2**20)
