"""Kept references in a model of 100 MB."""

import hashlib

import pytest
import torch
from torch import nn

from tests.runtime.launch import run_ranks
from tests.runtime.loops.loop_reference import first_difference
from tests.runtime.loops.loop_run import Run, run_loop

WIDTH, LAYERS = 1024, 12  # 100 MB in float64


def _large() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def flat_buffer_and_average(run: Run) -> None:
    """Gradients in a flat buffer, cleared and scaled there; an average over a kept list of parameters."""
    model = run.build(_large)
    kept = list(model.parameters())
    optimizer = run.wrap(torch.optim.SGD(kept, lr=0.01, momentum=0.9), model)
    flat: torch.Tensor = torch.zeros(sum(parameter.numel() for parameter in kept), dtype=torch.float64)
    parts = torch.split(flat, [parameter.numel() for parameter in kept])
    for parameter, part in zip(kept, parts, strict=True):
        parameter.grad = part.view_as(parameter)
    average = [parameter.detach().clone() for parameter in kept]
    for step in range(run.steps):
        flat.zero_()
        torch.autograd.backward(model(run.batch(step, 4, WIDTH)).pow(2).mean())
        run.average(model)
        flat.mul_(0.5)
        optimizer.step()
        torch._foreach_lerp_(average, [parameter.detach() for parameter in kept], 0.5)
    run.see([each.sum() for each in average])


def compare(rank: int, size: int) -> tuple[str, str]:
    """Train plainly and under the runtime; return the first difference, and a digest of the weights."""
    (expected, looked_for), (weights, seen) = (
        run_loop(rank, size, flat_buffer_and_average, transport, 3, {"mode": "overlap"})
        for transport in (None, "gloo")
    )
    said = first_difference(weights, expected, 1e-9) or first_difference(seen, looked_for, 1e-8)
    digest = hashlib.sha256()
    for each in weights:
        digest.update(each.data)
    return said, digest.hexdigest()


@pytest.mark.slow
def test_a_large_model_trains_as_plainly() -> None:
    """Weights, and the average over the kept list, are those of plain training, to the bit alike on ranks."""
    first, second = run_ranks(compare, 2)
    assert first[0] == second[0] == ""
    assert first[1] == second[1]
