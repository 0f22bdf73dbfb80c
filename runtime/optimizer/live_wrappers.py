"""The wrappers in use in this process: no two update the same parameter, and all end with the process."""

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from pace.errors import InvalidUse
from pace.runtime.servers.fork_rest import go_on, rest
from pace.runtime.transports.torch_threads import finish_torch_threads


class LiveWrapper(Protocol):
    """A wrapper that is not closed."""

    optimizer: torch.optim.Optimizer

    @property
    def parameters_by_name(self) -> Mapping[str, nn.Parameter]:
        """The parameters whose gradients it sums."""

    def before_fork(self) -> None:
        """Apply what is pending, as this process is about to be forked."""

    def after_fork_in_child(self) -> None:
        """Leave everything alone, as this is a process forked from the one that trains."""

    def end_with_process(self, uncaught: type[BaseException] | None) -> None:
        """Finish or give up what is in flight."""


live: "weakref.WeakSet[LiveWrapper]" = weakref.WeakSet()


def refuse_wrapped(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that is wrapped, or updates a parameter of another that is.

    Raises
    ------
    InvalidUse
        Names the parameters.
    """
    mine = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    for wrapper in list(live):
        if wrapper.optimizer is optimizer:
            raise InvalidUse("the optimizer is already wrapped: close() the wrapper before wrapping it again")
        taken = [name for name, parameter in wrapper.parameters_by_name.items() if parameter in mine]
        if taken:
            raise InvalidUse(
                "the model is already wrapped, with another optimizer that also updates"
                f" {', '.join(taken[:5])}: close() that wrapper first"
            )


@atexit.register
def _end_all() -> None:
    # A process that ends without close(), by an exception say, must not take its threads into the
    # interpreter's own end: it would be aborted there.
    uncaught: type[BaseException] | None = getattr(sys, "last_type", None)
    for wrapper in list(live):
        wrapper.end_with_process(uncaught)
    finish_torch_threads()


FORKED = (
    "this process was forked from one that trains and takes no part in the training: use the wrapper, and"
    " gradients that are being summed, in the process that wrapped the optimizer"
)


def _before_fork() -> None:
    for wrapper in list(live):
        wrapper.before_fork()
    rest()  # servers have worked for these updates


def _after_fork_in_child() -> None:
    go_on()
    for wrapper in list(live):
        wrapper.after_fork_in_child()
    live.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=go_on, after_in_child=_after_fork_in_child)


class WhereMade:
    """The thread that made a wrapper: the only one in which its end, once it is dropped, may be waited for.

    The garbage collector runs in whichever thread allocates, and that may be one that the end waits for: the
    engine's, one that completes its sums, or the one that says that this rank is alive.
    """

    def __init__(self) -> None:
        self._thread = weakref.ref(threading.current_thread())

    def end(self, dropped: Callable[[], None]) -> None:
        """Call what ends a wrapper that nobody has any more: here, or in a new thread of its own."""
        if self._thread() is threading.current_thread():
            dropped()
        else:
            # No daemon: the process waits for last sums as it would in the thread that trains.
            threading.Thread(target=dropped, name="pace.dropped").start()


def weakly(method: Callable[..., Any], otherwise: Any = None) -> Callable[..., Any]:
    """Return a function that calls a method as long as its object lives, and does not keep it alive."""
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        alive = reference()
        return otherwise if alive is None else alive(*arguments)

    return call
