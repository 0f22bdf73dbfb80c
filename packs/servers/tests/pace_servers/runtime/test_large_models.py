"""Models of 100 MB over servers on loopback, at full speed: weights, and bytes on the wire."""

import hashlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.pace_servers.runtime.server_processes import served
from tests.runtime.launch import run_ranks
from tests.runtime.training import backward, wrap

SIZE, STEPS = 2, 2
LAYERS, WIDTH = 4, 2500
LEARNING_RATE = 1e-4
MODEL_BYTES = LAYERS * WIDTH * WIDTH * 4


def _model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def _batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank))


def _plain() -> list[torch.Tensor]:
    """Train on all ranks' batches in one process."""
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(SIZE):
            backward(model(_batch(rank, step)).square().sum() / SIZE)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def _train(rank: int, _size: int, servers: list[str], way: str) -> tuple[str, float, list[float]]:
    """Return a digest of the weights, bytes a step, and the distance from plain training.

    The distance is relative to the largest change of a weight.
    """
    from pace_servers.runtime import ParameterServers, asynchronous

    model = _model()
    inner = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    optimizer: Any
    if way == "synchronous":
        optimizer = wrap("gloo", inner, model, over="servers", servers=servers)
    else:
        over = ParameterServers(servers=servers)
        optimizer = asynchronous(inner, model, communication=over, staleness=0, timeout_s=60.0)

    def carried() -> Any:
        return np.sum([link._stream.carried_bytes for link in optimizer._transport._links], axis=0)

    before = carried()
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model(_batch(rank, step)).square().sum())
        optimizer.step()
    if way == "synchronous":
        optimizer.synchronize()
    each = ((carried() - before) / STEPS).tolist()
    optimizer.synchronize()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().data)
    far = max(
        float((mine - plain).abs().max() / (plain - first).abs().max())
        for mine, plain, first in zip(model.parameters(), _plain(), _model().parameters(), strict=True)
    )
    optimizer.close()
    return digest.hexdigest(), far, each


@pytest.mark.slow
@pytest.mark.parametrize("way", ["synchronous", "staleness 0"])
def test_a_model_of_100_mb_trains_over_two_servers(way: str) -> None:
    """Weights of plain training, equal bits on both ranks; each step carries the model once each way."""
    with served(2) as (servers, _):
        ranks = run_ranks(_train, SIZE, servers, way)
    assert ranks[0][0] == ranks[1][0]
    for _, far, (sent, received) in ranks:
        assert far < 1e-2
        assert MODEL_BYTES < sent < 1.01 * MODEL_BYTES
        assert MODEL_BYTES < received < 1.01 * MODEL_BYTES
