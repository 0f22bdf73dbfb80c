"""Signal handlers wait while the runtime waits for or applies an update: they may read weights, to save them.

Under DistributedDataParallel they wait as well, until torch's code in C++ returns.
"""

import _thread
import functools
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

# What applies updates, or leads to it. While PACE shuts down at the end of a job, handlers are not delayed.
_INSIDE = tuple(f"pace.runtime.{package}" for package in ("engine", "gates", "optimizer", "transports"))
_AT_THE_END = "pace.runtime.optimizer.live_wrappers"
_AGAIN_S = 0.01
# The signals that batch systems and users send are looked at after each step; all signals would take 30 us.
_USUAL = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGALRM),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGXCPU),
)


class _Postponed:
    """A user's handler that is called again later, if the runtime is at work."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        functools.update_wrapper(self, handler, updated=())
        self._handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        if not _is_inside(frame):
            return self.call(number, frame)
        _postponed[number] = self
        again = threading.Timer(_AGAIN_S, _signal_again, (number,))
        again.daemon = True
        again.start()
        return None

    def call(self, number: int, frame: FrameType | None) -> Any:
        _postponed.pop(number, None)
        return self._handler(number, frame)


_postponed: dict[int, _Postponed] = {}


def _signal_again(number: int) -> None:
    if number in _postponed:
        _thread.interrupt_main(signal.Signals(number))


def call_postponed() -> None:
    """Call the handlers that wait; the main thread calls this where weights may be read."""
    if _postponed and threading.current_thread() is threading.main_thread():
        for number, handler in list(_postponed.items()):
            handler.call(number, sys._getframe(1))


def _is_inside(frame: FrameType | None) -> bool:
    inside = False
    while frame is not None:
        name: str = frame.f_globals.get("__name__", "")
        if name == _AT_THE_END:
            return False
        inside = inside or name.startswith(_INSIDE)
        frame = frame.f_back
    return inside


def postpone_handlers(*, of_all: bool = False) -> None:
    """Delay the handlers that are set, except Python's own of Ctrl-C, while the runtime is at work.

    Parameters
    ----------
    of_all
        Whether to look for handlers of unusual signals, too.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in signal.valid_signals() if of_all else _USUAL:
        handler = signal.getsignal(number)
        if not callable(handler) or handler is signal.default_int_handler or isinstance(handler, _Postponed):
            continue
        signal.signal(number, _Postponed(handler))
