"""Another thread uses the model while it trains, as one that evaluates or saves it."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

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

STEPS = 60
CASE = Case(optimizer="adamw", steps=STEPS)

READS: dict[str, Callable[[Any, Any], object]] = {
    "state": lambda model, _batch: {name: value.clone() for name, value in model.state_dict().items()},
    "forward pass": lambda model, batch: model(*batch),
}


def train_beside_a_reader(rank: int, read: str, mode: str) -> tuple[Weights, list[str]]:
    """Train while another thread reads; return the weights, and its errors."""
    model = build(CASE.model)
    optimizer = wrap("gloo", OPTIMIZERS[CASE.optimizer](trainable(model)), model, mode=mode)
    shares = batches(CASE.model, STEPS, rank)
    ended, errors = threading.Event(), []

    def use() -> None:
        try:
            while not ended.wait(0.001):
                with torch.no_grad():
                    READS[read](model, shares[0])
        except Exception as error:
            errors.append(repr(error))

    reader = threading.Thread(target=use)
    reader.start()
    try:
        for batch in shares:
            optimizer.zero_grad()
            backward(model(*batch))
            optimizer.step()
    finally:
        ended.set()
        reader.join()
    trained = weights(model)
    optimizer.close()
    return trained, errors


@pytest.mark.parametrize("mode", ["overlap", "check"])
@pytest.mark.parametrize("read", READS)
def test_another_thread_may_use_the_model(pool: RankPool, read: str, mode: str) -> None:
    """It applies updates that are pending, while the training thread clears gradients and takes steps."""
    (first, *errors), (second, *others) = pool.results(train_beside_a_reader, read, mode)
    assert [*errors, *others] == [[], []]
    assert equal_bits(first, second)
    assert difference(first, train_plainly(CASE, 2)) <= 1e-4
