"""Daemon threads that call into torch: they come to their end before the interpreter does.

While the interpreter ends, Python unwinds the stack of a daemon thread that comes back from a call. Inside
torch's C++ that aborts the process: "terminate called without an active exception".
"""

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from pace.runtime.transports.sockets import Sockets

T = TypeVar("T")

# How long the process waits for threads as it ends: no exit takes for ever. Those whose connections were
# broken end at once; others may be in a call that nothing can end.
_BROKEN_S = 10.0
_OTHERS_S = 2.0

_threads: "weakref.WeakKeyDictionary[threading.Thread, Sockets | None]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def torch_thread(
    target: Callable[..., Any], *, name: str, args: tuple[Any, ...] = (), sockets: Sockets | None = None
) -> threading.Thread:
    """Return a daemon thread, to be started, that is waited for as the process ends.

    Parameters
    ----------
    sockets
        What its calls may wait for, and what is broken then if it has not ended.
    """
    thread = threading.Thread(target=target, name=name, args=args, daemon=True)
    with _lock:
        _threads[thread] = sockets
    return thread


def call_within(timeout_s: float, call: Callable[[], T], *, name: str) -> T:
    """Return what `call` returns; it runs in a daemon thread, which is left behind when it takes too long.

    Raises
    ------
    TimeoutError
        When it did not end in time. What it raises itself is raised here.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # raised in the calling thread
            errors.append(error)

    thread = torch_thread(run, name=name)
    thread.start()
    thread.join(timeout_s)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no end within {timeout_s:g} s")
    return results[0]


def finish_torch_threads() -> None:
    """Wait until no thread is inside torch, as the process ends and everything is closed.

    A call under way ends only with its time-out or its connections, so these are broken.
    """
    with _lock:
        running = [(thread, sockets) for thread, sockets in _threads.items() if thread.is_alive()]
    for _, sockets in running:
        if sockets is not None:
            sockets.shut_down()
    start = time.monotonic()
    for thread, sockets in running:
        if thread is not threading.current_thread():
            limit_s = _OTHERS_S if sockets is None else _BROKEN_S
            thread.join(max(start + limit_s - time.monotonic(), 0.0))
