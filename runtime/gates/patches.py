"""The list of torch's and Horovod's functions that the runtime replaces, and the code that replaces them.

Every patch calls the own function. It stays until the process ends, as other code may have wrapped it
since. Patches that depend on a wrapper check for open wrappers when they are called.
"""

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import nn

from pace.runtime.gates.guarded_tensors import ask_arguments
from pace.runtime.gates.parameter_gates import take_off_hooks

HOROVOD_STARTS = tuple(
    f"horovod.torch.mpi_ops:_{kind}_async"
    for kind in (
        "allreduce",
        "grouped_allreduce",
        "allgather",
        "grouped_allgather",
        "broadcast",
        "alltoall",
        "reducescatter",
        "grouped_reducescatter",
    )
)

PLACES: dict[str, str] = {
    "torch.autograd:_engine_run_backward": "tells when the outermost backward pass ends",
    "torch.jit._recursive:create_script_module": "tells which parameters compiled modules share",
    "torch.serialization:_save": "looks for values of pending parameters, in mode='check'",
    **dict.fromkeys(HOROVOD_STARTS, "gives names to collectives that have none"),
    "horovod.torch:join": "applies pending updates first",
    "horovod.torch:remove_process_set": "closes wrappers of the process set first",
    "horovod.torch:shutdown": "closes wrappers first",
}
"""Where (``module:name``), and what for."""

_done: set[str] = set()


def patch(place: str, make: Callable[[Any], Any]) -> None:
    """Replace a library's own function by ``make(own)``, once in a process, if its module is loaded."""
    assert place in PLACES, place
    module, _, name = place.partition(":")
    owner: Any = sys.modules.get(module)
    own = getattr(owner, name, None)
    if place not in _done and own is not None:
        _done.add(place)
        setattr(owner, name, make(own))


# The begin of backward passes, and the end of the outermost: nested ones (checkpoints) are parts of it.
class _Depth(threading.local):
    passes = 0


_depth = _Depth()
# Hooks run in the threads of devices, too, so whichever outermost pass ends next calls these.
_due: list[Callable[[], None]] = []
_beginning: list[Callable[[Sequence[Any]], None]] = []


def after_backward(call: Callable[[], None]) -> None:
    """Call a function when the current backward pass ends, before ``backward()`` returns."""
    _due.append(call)


def before_backward(call: Callable[[Sequence[Any]], None]) -> Callable[[], None]:
    """Call a function with the tensors that each backward pass begins with; return what ends this."""
    watch_backward()
    _beginning.append(call)
    return lambda: _beginning.remove(call) if call in _beginning else None


def watch_backward() -> None:
    """Notice the ends of backward passes from now on. Idempotent."""
    patch("torch.autograd:_engine_run_backward", _ending)


def _ending(own: Any) -> Any:
    @functools.wraps(own)
    def run_backward(*arguments: Any, **named: Any) -> Any:
        ask_arguments(arguments[:2], {})  # weights can be the gradients that a pass begins with
        for begin in list(_beginning):
            begin(arguments[:2])
        _depth.passes += 1
        try:
            found = own(*arguments, **named)
        except BaseException:
            _due.clear()
            raise
        finally:
            _depth.passes -= 1
        while _due and not _depth.passes:
            _due.pop(0)()
        return found

    return run_backward


F = TypeVar("F", bound=Callable[..., Any])

_watches: "weakref.WeakValueDictionary[int, CompiledWatch]" = weakref.WeakValueDictionary()


class CompiledWatch:
    """Reports compiled code, which reads parameters without any guard or gate, until ``close``.

    Modules that ``torch.jit`` traces or scripts share the model's parameters from then on. What
    ``torch.compile`` compiles may use any parameter. Before Dynamo compiles code for a guarded parameter, it
    compares its class, so code from before a wrapper does not use one unnoticed.

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
    # Updates are applied here, and optimizers round in another way if they believe that they are compiled.
    compiling = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = False
    try:
        _tell("torch.compile", None)
    finally:
        torch.compiler._is_compiling_flag = compiling


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
