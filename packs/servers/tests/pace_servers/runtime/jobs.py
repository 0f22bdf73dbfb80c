"""Training over parameter servers, as tests of several modules run it on real ranks."""

from typing import Any

import torch

from tests.runtime.models import batches, build, weights
from tests.runtime.training import (
    OPTIMIZERS,
    Case,
    Weights,
    average_gradients,
    backward,
    train_case,
    trainable,
    wrap,
)


def train_over_servers(rank: int, _size: int, cases: list[Case]) -> list[Weights]:
    """Train one case after the other in the same processes, with a server in every rank."""
    found = []
    for case in cases:
        options: dict[str, Any] = {"over": "servers", **case.options}
        found.append(
            train_case(
                rank,
                "gloo",
                Case(
                    model=case.model,
                    optimizer=case.optimizer,
                    steps=case.steps,
                    options=options,
                    double=case.double,
                ),
            )
        )
    return found


def train_clipped(rank: int, _size: int) -> list[Weights]:
    """Accumulate two backward passes and clip, twice the same way: weights of both runs."""
    found = []
    for _ in range(2):
        model = build("branches", double=True)
        optimizer = wrap(
            "gloo", OPTIMIZERS["sgd"](trainable(model)), model, over="servers", deterministic=True
        )
        shares = batches("branches", 8, rank, double=True)
        for first, second in zip(shares[::2], shares[1::2], strict=True):
            optimizer.zero_grad()
            with optimizer.no_sync():
                backward(model(*first))
            backward(model(*second))
            torch.nn.utils.clip_grad_norm_(trainable(model), 0.05)
            optimizer.step()
        optimizer.synchronize()
        found.append(weights(model))
        optimizer.close()
    return found


def train_clipped_plainly(size: int) -> Weights:
    """The same in one process."""
    model = build("branches", double=True)
    optimizer = OPTIMIZERS["sgd"](trainable(model))
    shares = [batches("branches", 8, rank, double=True) for rank in range(size)]
    for step in range(0, 8, 2):
        optimizer.zero_grad()
        average_gradients(model, [share[at] for share in shares for at in (step, step + 1)])
        for parameter in trainable(model):
            if parameter.grad is not None:
                parameter.grad.mul_(2)  # accumulated gradients are added, ranks' are averaged
        torch.nn.utils.clip_grad_norm_(trainable(model), 0.05)
        optimizer.step()
    return weights(model)
