"""A signal's handler saves a checkpoint, as batch systems have users do, while an update is waited for."""

import signal
import time
from typing import Any

import pytest

from tests.runtime.models import batches, build, weights
from tests.runtime.rank_pool import RankPool
from tests.runtime.training import (
    OPTIMIZERS,
    Case,
    Weights,
    backward,
    difference,
    equal_bits,
    train_plainly,
    trainable,
    wrap,
)

STEPS = 6
SLOW_STEP = 2
SLOW_S = 0.6


def save_when_told(rank: int, options: dict[str, Any]) -> tuple[Weights, list[tuple[int, Weights]]]:
    """Train; rank 0 gets a signal while rank 1 is late. Return the weights, and what the handler saw when."""
    model = build("conv")
    inner = OPTIMIZERS["sgd"](trainable(model))
    saved: list[tuple[int, Weights]] = []
    step = 0

    def save(_number: int, _frame: object) -> None:
        optimizer.state_dict()
        saved.append((step, weights(model)))

    before = signal.signal(signal.SIGALRM, save)
    optimizer = wrap("gloo", inner, model, timeout_s=30.0, **options)
    for batch in batches("conv", STEPS, rank):
        optimizer.zero_grad()
        if rank == 0 and step == SLOW_STEP:
            signal.setitimer(signal.ITIMER_REAL, SLOW_S / 3)
        if rank == 1 and step == SLOW_STEP:
            time.sleep(SLOW_S)
        backward(model(*batch))
        optimizer.step()
        step += 1
    trained = weights(model)
    optimizer.close()
    signal.signal(signal.SIGALRM, before)
    return trained, saved


@pytest.mark.parametrize("options", [{}, {"sharding": "on"}, {"mode": "barrier"}], ids=str)
def test_a_checkpoint_of_a_signals_handler_is_whole(pool: RankPool, options: dict[str, Any]) -> None:
    """It has the weights after a whole step, and changes none."""
    (first, saved), (second, _) = pool.results(save_when_told, options)
    assert equal_bits(first, second)
    assert difference(first, train_plainly(Case(steps=STEPS), 2)) <= 1e-5
    ((steps, seen),) = saved
    assert SLOW_STEP <= steps < STEPS
    near = [difference(seen, train_plainly(Case(steps=count), 2)) for count in (steps, steps + 1)]
    assert min(near) <= 1e-5
