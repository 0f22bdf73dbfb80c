"""Notices code that torch compiles, which reads parameters without any guard or gate.

Modules that ``torch.jit`` traces or scripts share the model's parameters from then on. Functions of
``torch.compile`` check the classes of their inputs, so parameters must be current before they begin.
"""

import functools
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar, cast

import torch
from torch import nn

from pace.runtime.gates.parameter_gates import take_off_hooks
from pace.runtime.gates.patches.places import patch

F = TypeVar("F", bound=Callable[..., Any])

_watches: "weakref.WeakValueDictionary[int, CompiledWatch]" = weakref.WeakValueDictionary()


class CompiledWatch:
    """Reports compiled code until ``close``.

    Parameters
    ----------
    scripted
        Called with each module that ``torch.jit`` traces or scripts.
    entered
        Called before each compiled function begins, with the module whose forward it is; None for a function.
    """

    def __init__(
        self, scripted: Callable[[nn.Module], None], entered: Callable[[nn.Module | None], None]
    ) -> None:
        self.scripted = scripted
        self.entered = entered
        _watches[id(self)] = self
        patch("torch.jit._recursive:create_script_module", _telling_of_scripts)
        # Torch's optimizers load it when the first is built.
        patch("torch._dynamo.eval_frame:install_generation_tagging_init", _telling_of_calls)

    def close(self) -> None:
        """Stop reporting."""
        _watches.pop(id(self), None)


def _telling_of_scripts(own: Any) -> Any:
    # Every way of creating a ScriptModule calls this function of torch.
    @functools.wraps(own)
    def create_script_module(module: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(module, nn.Module):
            for watch in list(_watches.values()):
                watch.scripted(module)
            take_off_hooks(module)
        return own(module, *arguments, **named)

    return create_script_module


def _telling_of_calls(own: Any) -> Any:
    # Called before each call of a compiled function, before Dynamo checks anything.
    @functools.wraps(own)
    def install_generation_tagging_init() -> None:
        if _watches:
            module = _compiled_module()
            for watch in list(_watches.values()):
                watch.entered(module)
        own()

    return install_generation_tagging_init


# From the call of a compiled function down to the function that is called first.
_DEEPEST = 8


def _compiled_module() -> nn.Module | None:
    """Return the module whose compiled forward is about to run; None for another function."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEEPEST):
        if frame is None:
            return None
        if frame.f_code.co_name == "compile_wrapper":
            owner = getattr(frame.f_locals.get("fn"), "__self__", None)
            return owner if isinstance(owner, nn.Module) else None
        frame = frame.f_back
    return None


# torch.compile's callback; with None, Python runs code without compiling it.
set_frame_evaluation: Any = torch._C._dynamo.eval_frame.set_eval_frame


def uncompiled(method: F) -> F:
    """Have a method run as it is where ``torch.compile`` compiles its caller.

    This does what ``torch.compiler.disable`` does, which takes seconds to import.
    """

    @functools.wraps(method)
    def run(*arguments: Any, **named: Any) -> Any:
        before = set_frame_evaluation(None)
        try:
            return method(*arguments, **named)
        finally:
            set_frame_evaluation(before)

    vars(run)["_torchdynamo_disable"] = True
    return cast("F", run)
