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
MODEL_NAMES = ("conv", "transformer", "branches", "functional", "mixed")
STEPS = 3


def _delay(chance: random.Random) -> None:
    if chance.random() < 0.1:
        time.sleep(chance.random() * 0.004)


def _run(rank: int, size: int, transport: str, seed: int) -> Any:
    shared = random.Random(seed)
    own = random.Random(seed * 1000 + rank)
    model = build(MODEL_NAMES[seed % len(MODEL_NAMES)])
    cut = shared.choice([64, 400, 4000])
    schedule = shuffled_schedule(model, size, seed, max_segment_bytes=cut)
    optimizer = wrap(
        transport,
        OPTIMIZERS["sgd"](trainable(model)),
        model,
        schedule=schedule,
        order=shared.choice(["static", "adaptive"]),
        credit_bytes=shared.choice([1, 2000, 1 << 30]),
        mode=shared.choice(["overlap", "overlap", "barrier"]),
        timeout_s=30.0,
    )
    for module in model.modules():
        module.register_forward_pre_hook(lambda *_: _delay(own))
    for parameter in trainable(model):
        register: Any = parameter.register_hook  # untyped in torch
        register(lambda _gradient: _delay(own))
    send = optimizer._transport.allreduce

    def slowly(*arguments: Any) -> None:
        _delay(own)
        send(*arguments)

    optimizer._transport.allreduce = slowly
    for batch in batches(MODEL_NAMES[seed % len(MODEL_NAMES)], STEPS, rank):
        _delay(own)
        optimizer.zero_grad()
        backward(model(*batch))
        optimizer.step()
    trained = weights(model)
    optimizer.close()
    return trained


def _run_all(rank: int, size: int, transport: str, seeds: Sequence[int]) -> Any:
    _run(rank, size, transport, 0)
    before = threading.active_count()
    trained = {seed: _run(rank, size, transport, seed) for seed in seeds}
    return trained, threading.active_count() - before


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_delays_neither_deadlock_nor_change_weights(transport: str, part: int) -> None:
    """Runs each with its own schedule, order, credit and delays; no thread is left over.

    Over Horovod a fifth of them: runs share the engine, and Horovod is slower to start and to sum.
    """
    seeds = range(part, RUNS if transport == "gloo" else RUNS // 5, PARTS)
    ranks = run_ranks(_run_all, SIZE, transport, seeds, backend=cast("Backend", transport), timeout_s=280)
    plain = {name: train_plainly(Case(model=name, steps=STEPS), SIZE) for name in MODEL_NAMES}
    for seed in seeds:
        first, *others = (trained[seed] for trained, _ in ranks)
        assert difference(first, plain[MODEL_NAMES[seed % len(MODEL_NAMES)]]) <= 1e-5, seed
        assert all(equal_bits(first, other) for other in others), seed
    assert [left for _, left in ranks] == [0] * SIZE
