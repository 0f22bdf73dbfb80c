"""How ranks begin: from rank 0's weights, and from a checkpoint of another number of ranks."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch

from pace.errors import PaceError
from tests.runtime.launch import Backend, run_ranks
from tests.runtime.models import batches, build, weights
from tests.runtime.training import (
    OPTIMIZERS,
    Case,
    Weights,
    average_gradients,
    backward,
    difference,
    equal_bits,
    train_plainly,
    trainable,
    wrap,
)


class _Strange(torch.nn.Module):
    """Holds a model, buffers of many kinds, and parameters that are laid out or spread unusually."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.inner = build("conv")
        self.count: torch.Tensor
        self.register_buffer("count", torch.tensor(rank))
        self.register_buffer("narrow", torch.full((3,), rank, dtype=torch.bfloat16), persistent=False)
        self.register_buffer("mask", torch.full((2, 2), rank == 0))
        self.register_buffer("empty", torch.zeros(0))
        self.turned = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).t() + rank, requires_grad=False)

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        """Loss of the inner model."""
        loss: torch.Tensor = self.inner(*batch)
        return loss


def _start_apart(rank: int, _size: int, transport: str) -> Any:
    model = _Strange(rank)
    if rank:
        with torch.no_grad():
            for parameter in model.inner.parameters():
                parameter.add_(rank)
    messages = []
    for options in ({"broadcast_parameters": False}, {}):
        if not options and rank == 1:
            model.register_buffer("extra", torch.zeros(1))
        try:
            wrap(transport, OPTIMIZERS["sgd"](trainable(model)), model, **options)
        except PaceError as error:
            messages.append((type(error).__name__, str(error)))
        if not options and rank == 1:
            del model.extra
    optimizer = wrap(transport, OPTIMIZERS["sgd"](trainable(model)), model)
    for batch in batches("conv", 20, rank):
        optimizer.zero_grad()
        backward(model(*batch))
        optimizer.step()
    others = [model.count, model.get_buffer("narrow"), model.get_buffer("mask"), model.turned]
    trained = weights(model.inner)
    optimizer.close()
    return messages, [tensor.tolist() for tensor in others], trained


def test_ranks_start_from_rank_0s_weights(transport: str) -> None:
    """Parameters and buffers of all kinds become rank 0's, or the difference is an error that names one."""
    ranks = run_ranks(_start_apart, 2, transport, backend=cast("Backend", transport), timeout_s=200)
    for messages, others, _ in ranks:
        (kind, said), (other_kind, other_said) = messages
        assert kind == "InvalidUse"
        assert "differ between ranks, turned on rank 1 for one" in said
        assert other_kind == "ScheduleMismatch"
        assert "rank 1 has other parameters or buffers than rank 0" in other_said
        assert others == [0, [0.0] * 3, [[True] * 2] * 2, [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]]
    (_, _, first), (_, _, second) = ranks
    assert equal_bits(first, second)
    assert difference(first, train_plainly(Case(), 2)) <= 1e-5


STEPS = 6


def _train_from(rank: int, size: int, transport: str, folder: str, resume: bool) -> Weights:
    """Train for some steps; from a checkpoint, which only rank 0 has loaded the weights of, or up to one."""
    path = Path(folder, "checkpoint.pt")
    model = build("conv")
    inner = OPTIMIZERS["adam"](trainable(model))
    saved = torch.load(path) if resume else None
    if saved is not None:
        inner.load_state_dict(saved["optimizer"])
        if rank == 0:
            model.load_state_dict(saved["model"])
    optimizer = wrap(transport, inner, model)
    for batch in batches("conv", STEPS, 10 * size + rank):
        optimizer.zero_grad()
        backward(model(*batch))
        optimizer.step()
    if rank == 0 and not resume:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    trained = weights(model)
    optimizer.close()
    return trained


def _train_plainly_from(model: Any, optimizer: torch.optim.Optimizer, size: int) -> None:
    shares = [batches("conv", STEPS, 10 * size + rank) for rank in range(size)]
    for step in range(STEPS):
        optimizer.zero_grad()
        average_gradients(model, [share[step] for share in shares])
        optimizer.step()


@pytest.mark.slow
def test_a_checkpoint_resumes_at_another_world_size(transport: str, tmp_path: Path) -> None:
    """Two ranks save; three, or one, go on from there as plain training does with the same batches."""
    backend = cast("Backend", transport)
    run_ranks(_train_from, 2, transport, str(tmp_path), False, backend=backend, timeout_s=200)
    for size in (3, 1) if transport == "gloo" else (3,):
        ranks = run_ranks(_train_from, size, transport, str(tmp_path), True, backend=backend, timeout_s=200)
        model = build("conv")
        optimizer = OPTIMIZERS["adam"](trainable(model))
        for each in (2, size):
            _train_plainly_from(model, optimizer, each)
        assert difference(ranks[0], weights(model)) <= 1e-5, size
        assert all(equal_bits(ranks[0], rank) for rank in ranks[1:]), size
