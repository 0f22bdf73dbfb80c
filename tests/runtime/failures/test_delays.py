"""Law 2 under stress: random delays in ranks, hooks and the transport never deadlock or change weights."""

import os
import random
import threading
import time
from collections.abc import Sequence
from typing import Any, cast

import pytest

from tests.runtime.launch import Backend, run_ranks
from tests.runtime.models import batches, build, weights
from tests.runtime.schedules import shuffled_schedule
from tests.runtime.shards.jobs import halves_schedule
from tests.runtime.training import (
    OPTIMIZERS,
    Case,
    backward,
    difference,
    equal_bits,
    train_plainly,
    trainable,
    wrap,
)

SIZE = 3
# A search tries two hundred or more.
RUNS = int(os.environ.get("PACE_RANDOM_DELAYS", "25"))
PARTS = 1 + RUNS // 80
MODEL_NAMES = {
    "off": ("conv", "transformer", "branches", "functional", "mixed"),
    "on": ("conv", "transformer", "branches", "mixed"),
}
CALLS = {"off": ("allreduce",), "on": ("reduce_scatter", "all_gather")}
STEPS = 3


def _delay(chance: random.Random) -> None:
    if chance.random() < 0.1:
        time.sleep(chance.random() * 0.004)


def _options(model: Any, sharding: str, seed: int) -> dict[str, Any]:
    """Draw a schedule, an order, a credit and what else a run varies: the same on every rank."""
    shared = random.Random(seed)
    options: dict[str, Any] = {
        "order": shared.choice(["static", "adaptive", "priority"]),
        "credit_bytes": shared.choice([1, 2000, 1 << 30]),
    }
    if sharding == "on":
        return options | {
            "sharding": "on",
            "schedule": halves_schedule(model, SIZE, seed) if shared.random() < 0.7 else None,
            "max_grad_norm": shared.choice([None, 1e9]),
        }
    cut = shared.choice([64, 400, 4000])
    return options | {
        "schedule": shuffled_schedule(model, SIZE, seed, max_segment_bytes=cut),
        "mode": shared.choice(["overlap", "overlap", "barrier"]),
    }


def _run(rank: int, transport: str, sharding: str, seed: int) -> Any:
    own = random.Random(seed * 1000 + rank)
    name = _model_of(sharding, seed)
    model = build(name)
    inner = OPTIMIZERS["sgd"](trainable(model))
    optimizer: Any = wrap(transport, inner, model, timeout_s=60.0, **_options(model, sharding, seed))
    for module in model.modules():
        module.register_forward_pre_hook(lambda *_: _delay(own))
    for parameter in trainable(model):
        register: Any = parameter.register_hook  # untyped in torch
        register(lambda _gradient: _delay(own))
    for call in CALLS[sharding]:
        send = getattr(optimizer._transport, call)

        def slowly(*arguments: Any, send: Any = send) -> None:
            _delay(own)
            send(*arguments)

        setattr(optimizer._transport, call, slowly)
    for batch in batches(name, STEPS, rank):
        _delay(own)
        optimizer.zero_grad()
        backward(model(*batch))
        if sharding == "on" and seed % 3 == 0:
            optimizer.clip_grad_norm_(1e9)
        optimizer.step()
    trained = weights(model)
    optimizer.close()
    return trained


def _model_of(sharding: str, seed: int) -> str:
    return MODEL_NAMES[sharding][seed % len(MODEL_NAMES[sharding])]


def _run_all(rank: int, _size: int, transport: str, sharding: str, seeds: Sequence[int]) -> Any:
    _run(rank, transport, sharding, 0)
    before = threading.active_count()
    trained = {seed: _run(rank, transport, sharding, seed) for seed in seeds}
    return trained, threading.active_count() - before


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("sharding", ["off", "on"])
def test_delays_neither_deadlock_nor_change_weights(transport: str, sharding: str, part: int) -> None:
    """Runs each with its own schedule, order, credit and delays; no thread is left over.

    Of sharded updates half as many. Over Horovod a quarter of each: runs share the engine, and Horovod is
    slower to start and to sum.
    """
    runs = RUNS if sharding == "off" else RUNS // 2
    seeds = range(part, runs if transport == "gloo" else runs // 4, PARTS)
    backend = cast("Backend", transport)
    ranks = run_ranks(_run_all, SIZE, transport, sharding, seeds, backend=backend, timeout_s=280)
    plain = {name: train_plainly(Case(model=name, steps=STEPS), SIZE) for name in MODEL_NAMES[sharding]}
    for seed in seeds:
        first, *others = (trained[seed] for trained, _ in ranks)
        assert difference(first, plain[_model_of(sharding, seed)]) <= 1e-5, seed
        assert all(equal_bits(first, other) for other in others), seed
    assert [left for _, left in ranks] == [0] * SIZE
