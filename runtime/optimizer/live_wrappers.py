"""The open wrappers of this process. No two update the same parameter, and all end with the process."""

import atexit
import contextlib
import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from pace.errors import InvalidUse
from pace.runtime.fork_rest import go_on, rest
from pace.runtime.gates.call_stacks import waiting_call
from pace.runtime.transports.peers import LOOK_S
from pace.runtime.transports.torch_threads import finish_torch_threads


class LiveWrapper(Protocol):
    """A wrapper that has not been closed."""

    optimizer: torch.optim.Optimizer

    @property
    def parameters_by_name(self) -> Mapping[str, nn.Parameter]:
        """The parameters whose gradients this wrapper sums."""

    def before_fork(self) -> None:
        """Apply pending updates; this process is about to be forked."""

    def after_fork_in_child(self) -> None:
        """Mark this wrapper as unusable: this process was forked from the one that trains."""

    def announce_end(self) -> Callable[[], bool]:
        """Say that this process ends; return a function that tells whether other ranks may still need it."""

    def end_with_process(self, uncaught: type[BaseException] | None) -> None:
        """Finish or abandon what is in flight."""


live: "weakref.WeakSet[LiveWrapper]" = weakref.WeakSet()


def refuse_wrapped(optimizer: torch.optim.Optimizer) -> None:
    """Check that neither this optimizer nor any of its parameters is wrapped already.

    Raises
    ------
    InvalidUse
        If one is; the message names the parameters.
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


def enlist(wrapper: LiveWrapper) -> None:
    """Note a wrapper, to be ended with the process before what it needs: Horovod ends itself as it exits."""
    live.add(wrapper)
    atexit.unregister(_end_all)
    atexit.register(_end_all)  # what is registered last is called first


def _end_all() -> None:
    # If a process ends without close(), for example by an exception, its threads must end before the
    # interpreter shuts down. Otherwise the process would be aborted.
    uncaught: type[BaseException] | None = getattr(sys, "last_type", None)
    wrappers = set(live)

    def end(wrapper: LiveWrapper) -> None:
        if wrapper in wrappers:
            wrappers.remove(wrapper)
            wrapper.end_with_process(uncaught)

    with contextlib.ExitStack() as ends:  # all end, even if one fails, or the user does not wait
        ends.callback(finish_torch_threads)
        for wrapper in wrappers:
            ends.callback(end, wrapper)
        # All say that they end before the first one waits: other ranks may have another order.
        stays = {wrapper: wrapper.announce_end() for wrapper in wrappers} if uncaught is None else {}
        while stays:
            for wrapper in [each for each, may_ask in stays.items() if not may_ask()]:
                del stays[wrapper]
                end(wrapper)
            if stays:
                time.sleep(LOOK_S)


FORKED = (
    "this process was forked from the training process and cannot use the wrapper or gradients that are being"
    " summed: use them in the process that wrapped the optimizer"
)


def _before_fork() -> None:
    for wrapper in list(live):
        wrapper.before_fork()
    rest()  # after the updates, which need the servers' threads


def _after_fork_in_child() -> None:
    # What the parent has dropped is not the child's to collect: the end of a process group of Gloo waits for
    # threads that only the parent has.
    gc.freeze()
    go_on()
    for wrapper in list(live):
        wrapper.after_fork_in_child()
    live.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=go_on, after_in_child=_after_fork_in_child)


class WhereMade:
    """The thread that created a wrapper: the only one that may wait for the end of a dropped wrapper.

    The garbage collector runs in any thread that allocates. That may be a thread that the end waits for: the
    engine's, one that completes sums, or the one that reports that this rank is alive.
    """

    def __init__(self) -> None:
        self._thread = weakref.ref(threading.current_thread())
        self._call: tuple[int, int] | None = None
        self._called_at = 0.0

    def end(self, dropped: Callable[[], None]) -> None:
        """End a dropped wrapper by calling `dropped`: here, or in a new thread if this is another thread."""
        if self._thread() is threading.current_thread():
            dropped()
        else:
            # Not a daemon: the process waits for the last sums, as it would in the training thread.
            threading.Thread(target=dropped, name="pace.dropped").start()

    def waits_s(self) -> float:
        """Return for how many seconds this thread has been in one call that waits for all ranks."""
        thread = self._thread()
        call = None if thread is None or thread.ident is None else waiting_call(thread.ident)
        now = time.monotonic()
        if call is None or call != self._call:
            self._call, self._called_at = call, now
        return now - self._called_at


def weakly(method: Callable[..., Any], otherwise: Any = None) -> Callable[..., Any]:
    """Return a function that calls a method without keeping its object alive.

    Once the object is gone, the function returns `otherwise`.
    """
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        alive = reference()
        return otherwise if alive is None else alive(*arguments)

    return call
