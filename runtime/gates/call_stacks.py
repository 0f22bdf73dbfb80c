"""Looks at call stacks: which code reads a gradient, and whether a thread waits for other ranks.

Torch's own code that clears or traces gradients does not need their values.
"""

import dis
import inspect
import sys
from types import FrameType
from typing import Literal

import torch
from torch import nn

from pace.runtime.gates import function_watch
from pace.runtime.gates.gradient_gates import READING

_CLEARING = frozenset(
    [nn.Module.zero_grad.__code__, inspect.unwrap(torch.optim.Optimizer.zero_grad).__code__]
)
_UNSCALING = frozenset([torch.amp.GradScaler._unscale_grads_.__code__])
_TRACERS = ("torch._dynamo", "torch._subclasses", "torch._functorch", "torch._inductor")
_COLLECTIVES = ("torch.distributed", "horovod")
# ``fully_shard`` gathers and scatters in every pass, so a rank that waits there may have more to compute.
_SHARDING = "torch.distributed.fsdp"
# Functions of the runtime in which all ranks meet when a wrapper is made.
_BEGINNINGS = ("connect", "start_together")
# What calls a collective again while functions are watched, or calls one of torch's operators.
_OPERATORS = "torch._ops"
_BETWEEN = (function_watch.__name__, "torch.overrides", _OPERATORS)
_COLLECTIVE_OPERATORS = ("_c10d_functional.", "c10d.", "c10d_functional.")

Reader = Literal["user", "clearing", "zeroing", "unscaling", "tracing"]


def reader() -> Reader:
    """Return which code reads a gradient.

    Returns
    -------
    str
        "clearing" and "zeroing" for torch's ``zero_grad`` with and without ``set_to_none``, which only checks
        whether there is a gradient. "unscaling" for torch's ``GradScaler``, which changes each element
        independently and checks whether all are finite. "tracing" for the compiler, which may read at any
        time. Otherwise "user".
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not READING:
        frame = frame.f_back
    if frame is None or frame.f_back is None:
        return "user"
    caller = frame.f_back
    if caller.f_code in _CLEARING:
        return "clearing" if caller.f_locals.get("set_to_none", True) else "zeroing"
    if caller.f_code in _UNSCALING:
        return "unscaling"
    name: str = caller.f_globals.get("__name__", "")
    return "tracing" if name.startswith(_TRACERS) else "user"


def in_collective(thread: int) -> bool:
    """Return whether a thread is inside a collective that user code called."""
    return _collective(_frames(thread)) is not None


def waiting_call(thread: int) -> tuple[int, int] | None:
    """Return what tells the call apart in which a thread waits for all ranks; None if it is in none.

    Such calls are collectives that user code called, and the wrapping of an optimizer.
    """
    frames = _frames(thread)
    beginnings = (
        each for each in frames if each.f_code.co_name in _BEGINNINGS and _is_of(each, "pace.runtime")
    )
    frame = _collective(frames) or next(beginnings, None)
    return None if frame is None else (id(frame), frame.f_lasti)


def _frames(thread: int) -> list[FrameType]:
    """Return the frames of a thread, the innermost first."""
    frame = sys._current_frames().get(thread)
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _is_of(frame: FrameType, prefix: str | tuple[str, ...]) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return name.startswith(prefix)


def _collective(frames: list[FrameType]) -> FrameType | None:
    found = None
    if frames and not _is_of(frames[0], ("pace.runtime", _SHARDING)) and _waits(frames[0]):
        return frames[0]
    for frame in frames:
        name = frame.f_globals.get("__name__")
        if name == _OPERATORS and str(frame.f_locals.get("self")).startswith(_COLLECTIVE_OPERATORS):
            found = found or frame
        if name not in _BETWEEN:
            if _is_of(frame, ("pace.runtime", _SHARDING)):
                return None
            if not _is_of(frame, _COLLECTIVES):
                return found
            found = found or frame
    return None


def _waits(frame: FrameType) -> bool:
    """Return whether a frame calls a ``wait`` that has no frame of its own, as that of torch's ``Work``."""
    if "wait" not in frame.f_code.co_names:
        return False
    return any(
        each.argval == "wait" and each.opname in ("LOAD_METHOD", "LOAD_ATTR")
        for each in dis.get_instructions(frame.f_code)
        if each.offset < frame.f_lasti and each.positions and each.positions.lineno == frame.f_lineno
    )
