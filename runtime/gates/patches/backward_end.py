"""The begin of backward passes, and the end of the outermost: nested ones (checkpoints) are parts of it."""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from pace.runtime.gates.guarded_tensors import ask_arguments
from pace.runtime.gates.patches.places import patch


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
