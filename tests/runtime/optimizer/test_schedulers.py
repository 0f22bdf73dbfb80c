"""Schedulers made for the wrapped optimizer itself take the wrapper's steps for its own."""

import warnings
from typing import Any

import torch
from torch.optim.lr_scheduler import StepLR

from tests.runtime.launch import run_ranks
from tests.runtime.models import batches, build
from tests.runtime.training import OPTIMIZERS, backward, trainable, wrap


def _train_with_scheduler(rank: int, _size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for mode in ("overlap", "barrier", "auto"):
        for made in ("before", "after"):
            model = build("conv")
            inner = OPTIMIZERS["sgd"](trainable(model))
            scheduler = StepLR(inner, step_size=1, gamma=0.5) if made == "before" else None
            optimizer = wrap("gloo", inner, model, mode=mode)
            scheduler = scheduler or StepLR(inner, step_size=1, gamma=0.5)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for batch in batches("conv", 3, rank):
                    optimizer.zero_grad()
                    backward(model(*batch))
                    optimizer.step()
                    scheduler.step()
            optimizer.close()
            found[f"{mode}, {made}"] = [str(each.message) for each in caught], inner.param_groups[0]["lr"]
    return found


def test_a_scheduler_of_the_inner_optimizer_does_not_warn() -> None:
    """In every mode, made before wrapping or after; the rate falls as it should."""
    for found in run_ranks(_train_with_scheduler, 2):
        assert len(found) == 6
        for way, (messages, rate) in found.items():
            assert messages == [], way
            assert rate == 0.05 / 8, way


def _schedule_too_early(_rank: int, _size: int) -> list[str]:
    model = build("conv")
    inner = torch.optim.SGD(trainable(model), lr=0.05)
    scheduler = StepLR(inner, step_size=1)
    optimizer = wrap("gloo", inner, model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scheduler.step()
    optimizer.close()
    return [str(each.message) for each in caught]


def test_a_scheduler_that_steps_first_still_warns() -> None:
    """Nothing was trained yet: the warning is right."""
    for messages in run_ranks(_schedule_too_early, 2):
        assert len(messages) == 1
        assert "before `optimizer.step()`" in messages[0]
