"""Training steps of the check's models, and how they are timed on a device that runs behind the host."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.studies.gpu.models import Batch
from pace.runtime.transports.clock import clock_for

PRECISIONS = ("fp32", "bf16")
"""bf16 is autocast's: matrix products in bfloat16, weights and gradients in float32."""


def autocast(precision: str, device: str) -> AbstractContextManager[Any]:
    """Return the context of a forward pass in this precision."""
    return torch.autocast(device, torch.bfloat16) if precision == "bf16" else nullcontext()


def training_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, precision: str = "fp32"
) -> Callable[[], None]:
    """Return a function that trains one step on the batch and waits for nothing."""
    device = batch[0].device.type

    def step() -> None:
        optimizer.zero_grad()
        with autocast(precision, device):
            loss = model(*batch)
        torch.autograd.backward(loss)
        optimizer.step()

    return step


def device_seconds(model: nn.Module, step: Callable[[], None], iterations: int) -> float:
    """Return the median time between steps on the device's own clock, after three steps that do not count."""
    clock = clock_for(model)
    for _ in range(3):
        step()
    stamps = [clock.now()]
    for _ in range(iterations):
        step()
        stamps.append(clock.now())
    passed = clock.seconds(stamps)
    return median(after - before for before, after in pairwise(passed))


def settled(device: str) -> float:
    """Wait until the device has done all that was queued and return the host's time in seconds."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
