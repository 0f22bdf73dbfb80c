"""Whether somebody has replaced methods of an optimizer: an update group by group would not call them."""

from typing import Any

import torch


def unhooked(kind: type[torch.optim.Optimizer]) -> Any:
    """Return a class's ``step`` without what watches it."""
    # Optimizer.__init__ wraps the class's step for profiling and hooks, once a class.
    step: Any = kind.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def step_was_replaced(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer has a ``step`` of its own, which is not its class's.

    A learning rate scheduler puts a function around ``step`` that notes that it was called: that is none.
    """
    step: Any = vars(optimizer).get("step")
    while step is not None and getattr(step, "_wrapped_by_lr_sched", False) and hasattr(step, "__wrapped__"):
        step = step.__wrapped__
    if step is None:
        return False
    function = getattr(step, "__func__", step)
    own: Any = type(optimizer).step
    return function is not own and function is not unhooked(type(optimizer))


def zero_grad_was_replaced(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer, or its class, has a ``zero_grad`` of its own."""
    if "zero_grad" in vars(optimizer):
        return True
    return type(optimizer).zero_grad is not torch.optim.Optimizer.zero_grad
