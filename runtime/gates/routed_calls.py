"""Has methods of an optimizer call a wrapper's, for frameworks that keep the optimizer itself."""

import functools
import types
from collections.abc import Callable
from typing import Any

import torch

_MISSING = object()


def route(optimizer: torch.optim.Optimizer, name: str, to: Callable[..., Any]) -> Callable[[], None]:
    """Have ``optimizer.name(...)`` call ``to(own, ...)``, where `own` is the method as it was.

    Returns
    -------
    What puts the method back, unless somebody has replaced it since: then `to` still gets the calls.
    """
    attributes = vars(optimizer)
    before = attributes.get(name, _MISSING)
    own = getattr(optimizer, name)

    @functools.wraps(getattr(own, "__func__", own))  # some look at its signature
    def routed(_optimizer: torch.optim.Optimizer, *arguments: Any, **named: Any) -> Any:
        return to(own, *arguments, **named)

    # Schedulers wrap step() to see it called, and warn where somebody else did so after them. The wrapper
    # tells them.
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
