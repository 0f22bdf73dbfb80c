"""What ``step(closure)`` returns: this rank's loss, or the mean if the optimizer decides by it."""

from typing import Any

import torch

from tests.runtime.launch import run_ranks
from tests.runtime.models import batches, build
from tests.runtime.training import OPTIMIZERS, trainable, wrap


def _losses(rank: int, _size: int) -> dict[str, tuple[float, float]]:
    found = {}
    for mode in ("auto", "barrier", "overlap", "LBFGS"):
        model = build("conv")
        parameters = trainable(model)
        inner = (
            torch.optim.LBFGS(parameters, max_iter=1) if mode == "LBFGS" else OPTIMIZERS["sgd"](parameters)
        )
        options: dict[str, Any] = {} if mode == "LBFGS" else {"mode": mode}
        optimizer = wrap("gloo", inner, model, **options)
        (batch,) = batches("conv", 1, rank)
        own: list[float] = []

        def closure(
            model: Any = model, optimizer: Any = optimizer, batch: Any = batch, own: Any = own
        ) -> Any:
            optimizer.zero_grad()
            loss = model(*batch).float().mean()
            own.append(float(loss.detach()))
            torch.autograd.backward(loss)
            return loss

        found[mode] = float(optimizer.step(closure)), own[0]
        optimizer.close()
    return found


def test_the_loss_is_the_ranks_own_in_every_mode() -> None:
    """As without PACE. LBFGS decides by it how far to go, so all its ranks get the mean."""
    first, second = run_ranks(_losses, 2)
    for mode in ("auto", "barrier", "overlap"):
        for returned, own in (first[mode], second[mode]):
            assert returned == own, mode
        assert first[mode][1] != second[mode][1]
    (one, mine), (other, theirs) = first["LBFGS"], second["LBFGS"]
    assert one == other
    assert abs(one - (mine + theirs) / 2) < 1e-6
