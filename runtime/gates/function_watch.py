"""Notices functions of torch that use a guarded tensor without asking its class, such as ``torch.tensor``.

A mode of this thread sees each call, by whatever name a program knows the function. It takes microseconds
a call, so it lasts only from ``step()`` to a model's next forward pass, or until all updates are applied. In
a forward pass, gates and guards notice uses.
"""

from typing import Any, cast

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from pace.runtime.gates.guarded_tensors import ask_unannounced


class _FunctionWatch(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if torch._C._is_torch_function_enabled():  # not ``without_guards``
            ask_unannounced(func, types, args, named)
        return func(*args, **named)


_WATCH = _FunctionWatch()


def watch_functions() -> None:
    """Call the guards of tensors that functions use in this thread, until ``ignore_functions``."""
    if not _watching():
        _replace_modes([_WATCH])


def ignore_functions() -> None:
    """End what ``watch_functions`` has begun; inside of a function, this is left to a later call."""
    if _watching():
        _replace_modes([])


def _watching() -> bool:
    modes = range(torch._C._len_torch_function_stack())
    return any(torch._C._get_function_stack_at(at) is _WATCH for at in modes)


def _replace_modes(lowest: list[Any]) -> None:
    """Put modes below those that user code has entered, which it leaves from the top, or remove the watch."""
    pop, push = cast("Any", _pop_mode), cast("Any", _push_mode)  # untyped in torch
    entered = [pop() for _ in range(torch._C._len_torch_function_stack())][::-1]
    default_device = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    if entered and entered[0] is default_device:  # which torch wants below all others
        lowest = [entered.pop(0), *lowest]
    for mode in (*lowest, *(each for each in entered if each is not _WATCH)):
        push(mode)
