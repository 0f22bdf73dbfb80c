"""The main loop of a worker process: it calls the functions that its pool sends, one after the other."""

import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import structlog

from pace.api.errors import LimitExceeded, WorkerFailed
from pace.api.logs import set_up_logs
from pace.errors import PaceError, SolverFailed

log = structlog.get_logger(__name__)

# A tenth of the weight of what is not nice, where both want the same core.
_NICE = 10

# More than tasks allocate between two looks of the pool.
_SLACK_BYTES = 64 << 20

NO_MEMORY = "the work needed more memory than one request may use"


def work(connection: "Connection[Any, Any]", memory_bytes: int, prepare: Callable[[], None] | None) -> None:
    """Call functions received over a connection and send back results or errors, until the pool is gone."""
    # A Ctrl-C at the terminal reaches the whole process group; ending is for the service to decide.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_up_logs()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if prepare is not None:
        try:
            prepare()
        except Exception:
            log.exception("worker-not-prepared")
            os._exit(1)
    # RLIMIT_AS would count address space that libraries reserve and never touch. What is there before the
    # first task differs by half a GB from machine to machine, so the limit is on what tasks add to it.
    limit_bytes = data_bytes() + memory_bytes
    # The pool ends a process beyond the limit. The kernel refuses more, in case that takes too long. Compiled
    # code that gets no memory may wait for ever, or abort, instead of failing. So there is room for a table
    # that doubles just below the limit: its new memory counts at once, before it is used.
    most_bytes = limit_bytes + 2 * memory_bytes + _SLACK_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
    connection.send(limit_bytes)
    while True:
        try:
            function, arguments, tells, gives_way = connection.recv()
        except (EOFError, OSError):
            return
        if tells:
            arguments = (*arguments, lambda value: connection.send(("progress", value)))
        try:
            call = _call_giving_way if gives_way and sys.platform == "linux" else _call
            answer: tuple[str, Any] = ("returned", call(function, arguments))
        except Exception as error:  # the task's, whatever it is: the caller is told
            answer = ("raised", _sendable(error))
        connection.send(answer)
        del function, arguments, answer


def data_bytes(pid: int | None = None) -> int:
    """Return what counts towards ``RLIMIT_DATA`` of this process, or of another, now; 0 if it is unknown."""
    try:
        pages = Path(f"/proc/{pid or 'self'}/statm").read_text().split()[5]
    except (OSError, IndexError):
        return 0  # not Linux, or it has just ended
    return int(pages) * resource.getpagesize()


def processor_s(pid: int | None) -> float:
    """Return the seconds that processors have worked for a process; 0 if it is unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # not Linux, or it has just ended
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(*arguments)


def _call_giving_way(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    # In a thread of its own: a priority that was lowered stays so, and Linux has one for each thread.
    with ThreadPoolExecutor(1, initializer=os.nice, initargs=(_NICE,)) as thread:
        return thread.submit(function, *arguments).result()


def _sendable(error: Exception) -> PaceError:
    """Return the error to send to the caller; unexpected errors are logged here."""
    if isinstance(error, MemoryError) or str(error) == "can't start new thread":
        return LimitExceeded(NO_MEMORY)
    if isinstance(error, PaceError) and not isinstance(error, SolverFailed):
        return error
    log.error("worker-failed", exc_info=error)
    return error if isinstance(error, PaceError) else WorkerFailed(type(error).__name__)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
