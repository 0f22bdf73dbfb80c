"""The ways in which loops with kept references are run: modes, shards, parameter servers, inside DDP."""

from typing import Any

import pytest

from tests.runtime.loops.beside_plain import assert_trains_as_plainly
from tests.runtime.loops.loop_run import Loop, run_loop
from tests.runtime.rank_pool import Failed, RankPool

MANNERS: dict[str, dict[str, Any]] = {
    "overlap": {"mode": "overlap"},
    "barrier": {"mode": "barrier"},
    "auto": {"mode": "auto"},
    "shards": {"mode": "overlap", "sharding": "on"},
    "shards tried": {"mode": "auto", "sharding": "auto"},
    "servers": {"mode": "overlap", "over": "servers"},
    "attached": {"mode": "overlap", "attach": True},
    "attached with a barrier": {"mode": "barrier", "attach": True},
}

# Those for a test's parameters.
MARKED_MANNERS = [
    pytest.param(name, marks=pytest.mark.pack("servers")) if "over" in options else name
    for name, options in MANNERS.items()
]

_SHARED = "something outside of the model shares the memory of"
_OLD_GRADIENT = "was read after step(), but updates are sharded and no rank has the whole gradient then"
_OLD_STATE = "is from before the last step()"

# What no rank has where updates are sharded, or could not keep there, is refused with these words.
REFUSED: dict[tuple[str, str], str] = {
    (
        "state_dict_alias",
        "shards",
    ): f"InvalidOptions: sharding is 'on', but updates cannot be sharded: {_SHARED}",
    ("aliases", "shards"): f"InvalidOptions: sharding is 'on', but updates cannot be sharded: {_SHARED}",
    (
        "aliases_written",
        "shards",
    ): f"InvalidOptions: sharding is 'on', but updates cannot be sharded: {_SHARED}",
    ("flat_parameters", "shards"): "updates cannot be sharded: 0.bias shares memory with 0.weight",
    ("cleared", "shards"): _OLD_GRADIENT,
    ("scaled", "shards"): _OLD_GRADIENT,
    ("accumulated", "shards"): _OLD_GRADIENT,
    ("state_tensors_kept", "shards"): _OLD_STATE,
    (
        "state_kept",
        "shards",
    ): "InvalidOptions: sharding is 'on', but updates cannot be sharded: the training loop",
    (
        "patched_before",
        "shards",
    ): "InvalidOptions: sharding is 'on', but updates cannot be sharded: the step of",
    ("patched_for_a_while", "shards"): "InvalidUse: the optimizer's step was replaced after it was wrapped",
}


def check(pool: RankPool, loop: Loop, manner: str) -> None:
    """Assert that a loop trains as plainly, or is refused on every rank in the words for it."""
    options = MANNERS[manner]
    steps = 22 if options["mode"] == "auto" else 9  # a trial has taken all its turns by then
    name = getattr(loop, "__name__", "")
    refused = REFUSED.get((name, manner))
    if refused is None:
        assert_trains_as_plainly(pool, loop, steps=steps, **options)
        return
    found = pool.run(run_loop, pool.size, loop, pool.backend, steps, options)
    assert [each for each in found if not isinstance(each, Failed) or refused not in each.reason] == []
