"""Notices code that torch compiles, which reads parameters without any guard or gate.

Modules that ``torch.jit`` traces or scripts share the model's parameters from then on. What ``torch.compile``
compiles may use any parameter. Before Dynamo compiles code for a guarded parameter, it compares its class, so
code from before a wrapper does not use one unnoticed.
"""

import functools
import weakref
from collections.abc import Callable
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
    found
        Called with what compiles code, before it does, and the module; None if it may be any code.
    """

    def __init__(self, found: Callable[[str, nn.Module | None], None]) -> None:
        self._found = found
        _watches[id(self)] = self
        patch("torch.jit._recursive:create_script_module", _telling_of_scripts)
        self.follow()

    def follow(self) -> None:
        """Have Dynamo report to this; it forgets that with ``torch.compiler.reset()``."""
        handler: Any = torch._dynamo.callback.callback_handler
        if _tell_of_compilation not in handler.start_callbacks:
            handler.register_start_callback(_tell_of_compilation)

    def close(self) -> None:
        """Stop reporting."""
        _watches.pop(id(self), None)


def _tell(compiler: str, module: nn.Module | None) -> None:
    for watch in list(_watches.values()):
        watch._found(compiler, module)


def _tell_of_compilation(*_arguments: Any) -> None:
    _tell("torch.compile", None)


def _telling_of_scripts(own: Any) -> Any:
    # Every way of creating a ScriptModule calls this function of torch.
    @functools.wraps(own)
    def create_script_module(module: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(module, nn.Module):
            _tell("torch.jit", module)
            take_off_hooks(module)
        return own(module, *arguments, **named)

    return create_script_module


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
