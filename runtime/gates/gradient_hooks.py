"""Hooks that run when autograd has added to a parameter's gradient."""

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from pace.runtime.engine.buffers import Slot


class GradientReceiver(Protocol):
    """An object that is called when a gradient has arrived."""

    def arrived(self, slot: Slot) -> None:
        """Process a gradient to which autograd has just added."""


def hook_gradient(receiver: GradientReceiver, slot: Slot) -> Any:
    """Call a receiver, which the hook does not keep alive, whenever a gradient arrives; return the handle."""
    # Weakly, as parameters outlive wrappers and must not keep them alive.
    reference = weakref.ref(receiver)

    def hook(_parameter: torch.Tensor) -> None:
        alive = reference()
        if alive is not None:
            alive.arrived(slot)

    return _register(slot.parameter, hook)


def _register(parameter: nn.Parameter, hook: Callable[[torch.Tensor], None]) -> Any:
    """Register a hook, on a frozen parameter too: it may be trained later."""
    register: Any = parameter.register_post_accumulate_grad_hook  # untyped in torch
    if parameter.requires_grad:
        return register(hook)
    parameter.requires_grad_(True)
    try:
        return register(hook)
    finally:
        parameter.requires_grad_(False)
