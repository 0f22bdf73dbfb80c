"""Daemon threads that call into torch and must end before the interpreter does.

While the interpreter shuts down, Python unwinds the stack of a daemon thread that returns from a call. Inside
torch's C++ this aborts the process: "terminate called without an active exception". So the connections that
such threads wait for are broken when the process ends; ``Sockets`` finds them.
"""

import contextlib
import ctypes
import os
import socket
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar


class Sockets:
    """The sockets that were opened during a block of code.

    They include those that other threads open meanwhile, so break them only if that does no harm.
    """

    def __init__(self) -> None:
        self._inodes: set[int] = set()

    @contextlib.contextmanager
    def opened_here(self) -> Iterator[None]:
        """Record the sockets that exist at the block's end and did not at its start."""
        before = set(_open_sockets())
        try:
            yield
        finally:
            self._inodes |= set(_open_sockets()) - before

    def shut_down(self) -> None:
        """Shut down those that are still open; calls that wait for them, on either side, end at once."""
        for inode, descriptor in _open_sockets().items():
            if inode in self._inodes:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                    # If a listener is gone, Gloo takes that for an internal error and aborts.
                    if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        connection.shutdown(socket.SHUT_RDWR)


def _open_sockets() -> dict[int, int]:
    """Return this process's socket descriptors by inode; none if the system does not list them."""
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                status = os.fstat(int(name))
                if stat.S_ISSOCK(status.st_mode):
                    found[status.st_ino] = int(name)
    return found


T = TypeVar("T")

# How long, in seconds, the process waits for threads when it ends. Threads whose connections were broken end
# at once; others may be in a call that cannot be ended.
_BROKEN_S = 10.0
_OTHERS_S = 2.0

# How often, in seconds, a wait looks for errors of other threads.
_POLL_S = 0.2

_threads: "weakref.WeakKeyDictionary[threading.Thread, Sockets | None]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


_here = threading.local()


def keep_thread_state() -> None:
    """Let this thread, one of torch's own that calls Python, have a state of the interpreter until it ends.

    Otherwise each call makes one, under a lock of the interpreter that it takes without the GIL. A process
    forked meanwhile finds this lock held, and hangs before any of its code runs.
    """
    if not hasattr(_here, "kept"):
        _here.kept = ctypes.pythonapi.PyGILState_Ensure()  # never released


def torch_thread(
    target: Callable[..., Any], *, name: str, args: tuple[Any, ...] = (), sockets: Sockets | None = None
) -> threading.Thread:
    """Return a daemon thread, not started, for which the process waits when it ends.

    Parameters
    ----------
    sockets
        Connections that its calls may wait for. They are broken if the thread has not ended by then.
    """
    thread = threading.Thread(target=target, name=name, args=args, daemon=True)
    with _lock:
        _threads[thread] = sockets
    return thread


def call_within(
    timeout_s: float, call: Callable[[], T], *, name: str, errors: list[BaseException] | None = None
) -> T:
    """Call a function in a daemon thread and return its result; after the time-out the thread goes on.

    Parameters
    ----------
    errors
        An error that another thread adds to this list ends the wait, too.

    Raises
    ------
    TimeoutError
        If the call did not end in time. Errors of the call itself are raised too.
    """
    results: list[T] = []
    errors = [] if errors is None else errors

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # raised in the calling thread
            errors.append(error)

    thread = torch_thread(run, name=name)
    thread.start()
    deadline = time.monotonic() + timeout_s
    while thread.is_alive() and not errors and (left_s := deadline - time.monotonic()) > 0:
        thread.join(min(left_s, _POLL_S))
    if errors and not results:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no end within {timeout_s:g} s")
    return results[0]


def finish_torch_threads() -> None:
    """Wait until no thread is inside torch, when the process ends and everything is closed.

    A call in progress ends only with its time-out or its connections, so the connections are broken.
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
