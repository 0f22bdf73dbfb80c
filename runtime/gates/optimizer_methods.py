"""Methods of an optimizer that replace those of its class: by a wrapper, or by user code."""

import functools
import types
from collections.abc import Callable
from typing import Any

import torch

_MISSING = object()


def route(optimizer: torch.optim.Optimizer, name: str, to: Callable[..., Any]) -> Callable[[], None]:
    """Make ``optimizer.name(...)`` call ``to(own, ...)``, where `own` is the original method.

    Returns
    -------
    A function that restores the method. If other code has replaced it since, `to` still gets the calls.
    """
    attributes = vars(optimizer)
    before = attributes.get(name, _MISSING)
    own = getattr(optimizer, name)

    @functools.wraps(getattr(own, "__func__", own))  # some look at its signature
    def routed(_optimizer: torch.optim.Optimizer, *arguments: Any, **named: Any) -> Any:
        return to(own, *arguments, **named)

    # Schedulers wrap step() to notice its calls, and warn if other code replaces it afterwards. The wrapper
    # notifies them.
    vars(routed)["_wrapped_by_lr_sched"] = True
    method = types.MethodType(routed, optimizer)
    attributes[name] = method

    def put_back() -> None:
        if attributes.get(name) is not method:
            return
        if before is _MISSING:
            del attributes[name]
        else:
            attributes[name] = before

    return put_back


def unhooked(kind: type[torch.optim.Optimizer]) -> Any:
    """Return a class's ``step`` without torch's hooks around it."""
    # Optimizer.__init__ wraps the class's step for profiling and hooks, once a class.
    step: Any = kind.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def update_rule(kind: type[torch.optim.Optimizer]) -> tuple[Any, Any]:
    """Return the methods of a class that make its update: ``step``, and what it collects gradients with."""
    collects = getattr(kind, "_init_group", None)
    # When TorchDynamo is loaded, it wraps this method of each of torch's optimizers.
    inner = getattr(collects, "_torchdynamo_orig_callable", None)
    while inner is not None and inner is getattr(collects, "__wrapped__", None):
        collects, inner = inner, getattr(inner, "_torchdynamo_orig_callable", None)
    return unhooked(kind), collects


def step_was_replaced(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer's ``step`` was replaced, so that it is not its class's.

    The function with which a learning rate scheduler wraps ``step`` does not count.
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
    """Return whether ``zero_grad`` of an optimizer, or of its class, is not torch's."""
    if "zero_grad" in vars(optimizer):
        return True
    return type(optimizer).zero_grad is not torch.optim.Optimizer.zero_grad
