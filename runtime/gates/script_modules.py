"""Notices modules that are traced or scripted: compiled code reads parameters past every guard and gate."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Told = Callable[[nn.Module], None]

_told: "weakref.WeakValueDictionary[int, ScriptWatch]" = weakref.WeakValueDictionary()


class ScriptWatch:
    """Calls a function with each module that ``torch.jit`` traces or scripts, until ``close``."""

    def __init__(self, told: Told) -> None:
        self.told = told
        _told[id(self)] = self
        _watch()

    def close(self) -> None:
        """Call it no more."""
        _told.pop(id(self), None)


def _watch() -> None:
    # Every way of making a ScriptModule comes by this function of torch.
    recursive: Any = torch.jit._recursive
    own = recursive.create_script_module
    if getattr(own, "_told_by_pace", False):
        return

    @functools.wraps(own)
    def create_script_module(module: Any, *arguments: Any, **named: Any) -> Any:
        for watch in list(_told.values()):
            watch.told(module)
        return own(module, *arguments, **named)

    vars(create_script_module)["_told_by_pace"] = True
    recursive.create_script_module = create_script_module
