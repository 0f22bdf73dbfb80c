"""Loads every compiled loop that a request may need, so that nobody waits for a compiler."""

import functools
import json
import zlib
from typing import Any

from pace.api.earlier_forms import stored_question
from pace.api.workers.fabric_runs import answer_fabric_run
from pace.api.workers.functions import answer_what_if, simulation, solve
from pace.api.workers.predictions import answer_prediction
from pace.api.workers.transfer_plans import plan_of
from pace.client.documents import SimulationRequest, example_profile
from pace.client.what_if_documents import GridDocument, WhatIfQuestion
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.profile_json import compact_profile
from pace.planning.optimize import warm_up

_LINK = {"up_bytes_per_s": 1e6, "down_bytes_per_s": 1e6}
_PLAN: dict[str, Any] = {
    "network": {
        "hosts": [{"name": name, **_LINK} for name in ("a", "b", "c", "server", "replica")],
        "server": "server",
        "replica": "replica",
        "aggregators": ["a"],
    },
    "batch": {
        "version": 1,
        "delay_bound": 9,
        "momentum": 0.9,
        "history_norm": 1.0,
        "divergence": {"kind": "norm", "max": 20},
        "updates": [
            {"id": name, "host": name, "size_bytes": 1000, "version": 0, "norm": 1.0}
            for name in ("a", "b", "c")
        ],
    },
}
_STEPS: dict[str, Any] = {
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
_SCENARIO = {"name": "warm-up", "machines": 2, "duration_s": 1, "delay_bound": 4}
_PUSH_PULL = {"kind": "push-pull", "servers": 1, "worker_bytes_per_s": 1e6}
_POLICIES = ("fifo", "tao", "p3")
_DISCIPLINES = ({"discipline": "fifo"}, {"discipline": "window", "window_bytes": 100}, {"discipline": "tic"})


@functools.cache  # a fork has what its parent has loaded
def load_kernels() -> None:
    """Answer something small of every kind.

    Takes a minute where nothing was compiled before, a second where it was, and nothing in a fork.
    """
    warm_up()
    profile = Profile.model_validate(example_profile())
    document = zlib.compress(compact_profile(profile).encode())
    exchanged = profile.model_dump(mode="json", exclude_none=True) | {"allreduce": _PUSH_PULL}
    solve(zlib.compress(json.dumps(exchanged).encode()), Options().model_dump_json())
    question = WhatIfQuestion(grid=GridDocument(bandwidth_gbps=(1.0,), workers=(2,)))
    answer_what_if(document, stored_question(question), _ignore)
    simulation(document, SimulationRequest(profile_id=profile.sha256, policies=_POLICIES))
    options = json.dumps({"workers": [2], "steps": 3, "skip": 1, "seeds": 1, "advice": False})
    for link in _DISCIPLINES:
        steps = _STEPS | {"link": {"bytes_per_s": 1e6, **link}}
        answer_prediction(zlib.compress(json.dumps(steps).encode()), options, _ignore)
    plan_of(json.dumps(_PLAN).encode(), False, 2**20)
    answer_fabric_run(
        zlib.compress(json.dumps(_SCENARIO).encode()),
        json.dumps(["mlfabric-a", "mlfabric-s", "async"]),
        _ignore,
    )


def _ignore(count: int) -> None:
    del count
