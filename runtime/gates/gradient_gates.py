"""Lets the runtime answer when Python code reads or writes ``parameter.grad``.

While a wrapper exists, ``torch.nn.Parameter.grad`` is a property, and with sharded parameters also
``DTensor.grad``. For parameters of a wrapper it asks their gate; for all others it does what torch does.
Autograd does not use this property: it adds to torch's own gradient of the parameter, which only holds what
this rank has computed.
"""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import nn

_TORCHS_OWN: Any = torch._C.TensorBase.grad


class GradientGate(Protocol):
    """Handles reads and writes of one parameter's gradient."""

    def read(self) -> torch.Tensor | None:
        """Return the value of ``parameter.grad`` for user code."""

    def write(self, value: torch.Tensor | None) -> None:
        """Process an assignment by user code; None if it clears the gradient."""


_gates: dict[int, tuple["weakref.ref[nn.Parameter]", GradientGate]] = {}
_gated_kinds: set[Any] = set()


class _ThisThread(threading.local):
    # An update may run in another thread while user code reads gradients.
    bypassed = False


_this_thread = _ThisThread()


# Both are called about ten times for each parameter in every step, so no Python function wraps torch's.
local_gradient: Callable[[torch.Tensor], torch.Tensor | None] = _TORCHS_OWN.__get__
"""Returns torch's own gradient of a parameter: what this rank has computed."""

set_local_gradient: Callable[[torch.Tensor, torch.Tensor | None], None] = _TORCHS_OWN.__set__
"""Replaces torch's own gradient of a parameter."""


def _read(parameter: nn.Parameter) -> torch.Tensor | None:
    entry = _gates.get(id(parameter))
    return local_gradient(parameter) if entry is None or _this_thread.bypassed else entry[1].read()


def _write(parameter: nn.Parameter, value: torch.Tensor | None) -> None:
    entry = _gates.get(id(parameter))
    if entry is None or _this_thread.bypassed:
        set_local_gradient(parameter, value)
    else:
        entry[1].write(value)


# The code through which all reads come, to find out where a read came from.
READING = _read.__code__


def _delete(parameter: nn.Parameter) -> None:
    _write(parameter, None)


def open_gate(parameter: nn.Parameter, gate: GradientGate) -> None:
    """Let `gate` handle a parameter's gradient until ``close_gate``."""
    kind = _kind_of(parameter)
    if "grad" not in vars(kind):
        kind.grad = property(_read, _write, _delete)
        _gated_kinds.add(kind)
    _gates[id(parameter)] = (weakref.ref(parameter), gate)


def close_gate(parameter: nn.Parameter, gate: GradientGate) -> None:
    """Let torch handle a parameter's gradient again, if `gate` still does."""
    entry = _gates.get(id(parameter))
    if entry is not None and entry[1] is gate:
        del _gates[id(parameter)]
    if not _gates:
        while _gated_kinds:
            del _gated_kinds.pop().grad


def _kind_of(parameter: nn.Parameter) -> Any:
    # A sharded parameter is a DTensor; only isinstance() says that it is a Parameter.
    kind = type(parameter)
    return nn.Parameter if issubclass(kind, nn.Parameter) else kind


def bypassed() -> bool:
    """Return whether this thread is inside ``without_gates``, for an optimizer's update."""
    return _this_thread.bypassed


@contextlib.contextmanager
def without_gates() -> Iterator[None]:
    """Inside, in this thread, ``parameter.grad`` is torch's own gradient, for an optimizer's update."""
    before, _this_thread.bypassed = _this_thread.bypassed, True
    try:
        yield
    finally:
        _this_thread.bypassed = before
