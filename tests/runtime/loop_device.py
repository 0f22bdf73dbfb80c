"""The device that loops train on: the CPU, or what PACE_TEST_DEVICE names, for example "cuda".

All ranks share one GPU then, and sum over Gloo.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

DEVICE = os.environ.get("PACE_TEST_DEVICE", "cpu")
ON_CPU = DEVICE == "cpu"


def train_there() -> None:
    """From now on, make tensors on the device."""
    if not ON_CPU:
        torch.set_default_device(DEVICE)
        torch.backends.cudnn.deterministic = True


def numbers(
    shape: Sequence[int], generator: torch.Generator, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    """Draw numbers, the same on every device."""
    return torch.randn(shape, generator=generator, dtype=dtype, device="cpu").to(DEVICE)


def moved(model: nn.Module) -> Any:
    """Move a model that was made on the CPU."""
    return model if ON_CPU else model.to(DEVICE)


def made_on_cpu() -> Any:
    """Inside, make tensors on the CPU: random weights are the same on every device then."""
    return torch.device("cpu")
