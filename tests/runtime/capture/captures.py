"""Small captures, for tests of what capture finds and of what it does to a training loop."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pace.documents.collective_costs import AffineAllReduce
from pace.documents.profile import Profile
from pace.runtime.capture.window import Granularity
from pace.runtime.profiler import Capture

ALLREDUCE = AffineAllReduce(latency_s=1e-3, seconds_per_byte=1e-9)


def captured(
    model: nn.Module,
    inputs: torch.Tensor,
    *,
    granularity: Granularity = "module",
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = lambda p: torch.optim.SGD(p, lr=0.01),
    backwards: int = 1,
) -> tuple[Profile, Capture]:
    """Capture two iterations of a training loop around the model."""
    chosen = optimizer(p for p in model.parameters() if p.requires_grad) if optimizer else None
    with Capture(model, chosen, iterations=2, warmup=1, granularity=granularity) as capture:
        while not capture.finished:
            model.zero_grad()
            for _ in range(backwards):
                model(inputs).square().mean().backward()
            if chosen is not None:
                chosen.step()
            capture.step()
    return capture.profile("test", workers=2, allreduce=ALLREDUCE), capture


def producers(profile: Profile) -> dict[str, str]:
    """Return every gradient's producer."""
    return {gradient.name: gradient.producer for gradient in profile.gradients}


def consumers(profile: Profile) -> dict[str, str]:
    """For every gradient, the op after the update that waits for it."""
    found: dict[str, str] = {}
    for op in profile.ops:
        for following in profile.ops:
            if op.name in following.deps and op.waits_for:
                found |= dict.fromkeys(op.waits_for, following.name)
    return found


def layered() -> nn.Sequential:
    """Return a small network without branches."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


IMAGES = torch.randn(2, 3, 8, 8)
