"""Laws 2 and 6 where updates are sharded: random delays, and a rank that is gone between the halves."""

import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.runtime.launch import Backend, run_ranks, try_ranks
from tests.runtime.models import batches, build, weights
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
STEPS = 3
MODELS = ("conv", "transformer", "branches", "mixed")
# A search tries two hundred or more.
RUNS = int(os.environ.get("PACE_RANDOM_DELAYS", "12"))


def _delay(chance: random.Random) -> None:
    if chance.random() < 0.1:
        time.sleep(chance.random() * 0.004)


def _run(rank: int, seed: int, backend: Backend) -> Any:
    shared, own = random.Random(seed), random.Random(seed * 1000 + rank)
    name = MODELS[seed % len(MODELS)]
    model = build(name)
    optimizer: Any = wrap(
        backend,
        OPTIMIZERS["sgd"](trainable(model)),
        model,
        sharding="on",
        schedule=halves_schedule(model, SIZE, seed) if shared.random() < 0.7 else None,
        order=shared.choice(["static", "adaptive", "priority"]),
        credit_bytes=shared.choice([1, 2000, 1 << 30]),
        max_grad_norm=shared.choice([None, 1e9]),
        timeout_s=60.0,
    )
    for module in model.modules():
        module.register_forward_pre_hook(lambda *_: _delay(own))
    for parameter in trainable(model):
        register: Any = parameter.register_hook  # untyped in torch
        register(lambda _gradient: _delay(own))
    for half in ("reduce_scatter", "all_gather"):
        send = getattr(optimizer._transport, half)

        def slowly(*arguments: Any, send: Any = send) -> None:
            _delay(own)
            send(*arguments)

        setattr(optimizer._transport, half, slowly)
    for batch in batches(name, STEPS, rank):
        _delay(own)
        optimizer.zero_grad()
        backward(model(*batch))
        if seed % 3 == 0:
            optimizer.clip_grad_norm_(1e9)
        optimizer.step()
    trained = weights(model)
    optimizer.close()
    return trained


def _run_all(rank: int, _size: int, seeds: Sequence[int], backend: Backend) -> Any:
    _run(rank, 0, backend)
    before = threading.active_count()
    trained = [_run(rank, seed, backend) for seed in seeds]
    return trained, threading.active_count() - before


@pytest.mark.slow
def test_delays_neither_deadlock_nor_change_weights(transport: Backend) -> None:
    """Each run has its own schedule, order, credit and delays; no thread is left over.

    Over Horovod a third of them: runs share the engine, and Horovod is slower to start and to sum.
    """
    seeds = range(RUNS if transport == "gloo" else RUNS // 3)
    ranks = run_ranks(_run_all, SIZE, seeds, transport, timeout_s=280, backend=transport)
    plain = {name: train_plainly(Case(model=name, steps=STEPS), SIZE) for name in MODELS}
    for seed in seeds:
        first, *others = (trained[seed] for trained, _ in ranks)
        assert difference(first, plain[MODELS[seed % len(MODELS)]]) <= 1e-5, seed
        assert all(equal_bits(first, other) for other in others), seed
    assert [left for _, left in ranks] == [0] * SIZE


def _lose_a_rank(rank: int, _size: int, where: str, backend: Backend) -> Any:
    model = build("conv")
    optimizer: Any = wrap(backend, OPTIMIZERS["adam"](trainable(model)), model, sharding="on", timeout_s=10.0)
    threads = {thread.ident for thread in threading.enumerate() if not thread.name.startswith("pace")}
    try:
        for step, batch in enumerate(batches("conv", 6, rank)):
            optimizer.zero_grad()
            backward(model(*batch))
            if step == 3 and rank == 1 and where == "between the halves":
                optimizer._rounds.engine.submit = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
            if step == 3 and rank == 1 and where == "before the norm":
                optimizer._transport.gather = lambda _: os.kill(os.getpid(), signal.SIGKILL)
            optimizer.clip_grad_norm_(1.0)
            optimizer.step()
    except Exception as error:
        optimizer.close()
        deadline = time.monotonic() + 60
        while (
            left := [t.name for t in threading.enumerate() if t.ident not in threads]
        ) and time.monotonic() < deadline:
            time.sleep(0.05)
        return type(error).__name__, str(error), left
    return None


@pytest.mark.slow
@pytest.mark.races_with_machine(reason="survivors must name the lost rank within a time-out of seconds")
@pytest.mark.parametrize("where", ["before the norm", "between the halves"])
def test_a_rank_killed_between_the_halves_is_an_error_on_the_others(where: str, transport: Backend) -> None:
    """It has summed its rows, and updates or gathers nothing: the others raise, name it, leave no thread."""
    outcomes = try_ranks(_lose_a_rank, SIZE, where, transport, expect_lost=[1], backend=transport)
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.result is not None, outcome.output
        kind, message, left = outcome.result
        assert kind == "CommunicationFailed"
        # Over Horovod the store ends with rank 0, which may notice first, say so and be gone.
        keeper_gone = transport == "horovod" and outcome is outcomes[2] and "rank 0 is gone" in message
        assert "rank 1 " in message.split(":", 1)[1] or keeper_gone
        assert left == []
