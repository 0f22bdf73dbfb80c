"""Loads every compiled loop that a request may need, so that nobody waits for a compiler."""

import functools
import json
import zlib
from typing import Any

from pace.client.documents import SimulationRequest, example_profile
from pace.documents.profile import Profile
from pace.documents.profile_json import compact_profile

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
_POLICIES = ("fifo", "tao", "p3")


@functools.cache  # a fork has what its parent has loaded
def load_kernels() -> None:
    """Answer something small of every kind.

    Takes a minute where nothing was compiled before, a second where it was, and nothing in a fork.
    """
    # The serving process, which only names this function, does without these.
    from pace.api.questions.registry import KINDS
    from pace.api.workers.drawings import simulation
    from pace.api.workers.transfer_plans import plan_of
    from pace.planning.optimize import warm_up

    warm_up()
    profile = Profile.model_validate(example_profile())
    document = zlib.compress(compact_profile(profile).encode())
    simulation(document, SimulationRequest(profile_id=profile.sha256, policies=_POLICIES))
    plan_of(json.dumps(_PLAN).encode(), False, 2**20)
    for kind in KINDS.values():
        for asked, options in kind.samples:
            kind.answer(zlib.compress(json.dumps(asked).encode()), options, _ignore)


def _ignore(count: int) -> None:
    del count
