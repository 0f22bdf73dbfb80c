"""Runs the service's tasks on a Dask worker: each in its own process, within limits.

Processes are kept for the next task of the same kind, as in the service itself. A worker under a nanny
may start none unless Dask's ``distributed.worker.daemon`` is off: see docs/guides/operate.md.
"""

import multiprocessing
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distributed import get_worker

from pace.api.errors import ExecutorMismatch
from pace.api.workers.kernels import load_kernels
from pace.api.workers.pool import WorkerCall, WorkerPool
from pace.errors import PaceError
from pace.version import __version__

_lock = threading.Lock()
_idle: dict[tuple[str, int], list[WorkerPool]] = {}
_running: dict[str, WorkerCall] = {}
# A cancellation may be faster than the task that it is for.
_cancelled: deque[str] = deque(maxlen=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one task."""

    timeout_s: float
    memory_bytes: int


def work(
    job: str,
    version: str,
    purpose: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    limits: Limits,
    topic: str | None,
) -> tuple[bool, Any]:
    """Do one task; return whether it succeeded, and its result or its error.

    Parameters
    ----------
    job
        Name of the task, for ``cancel``.
    version
        Version of the service: equal questions must have equal answers wherever they are computed.
    topic
        If given, the function's progress is published under this topic.
    """
    if version != __version__:
        detail = f"a Dask worker has pace {__version__}, the service {version}"
        return False, ExecutorMismatch(detail)
    if multiprocessing.current_process().daemon:
        detail = "Dask's nanny lets its worker start no processes: set distributed.worker.daemon to False"
        return False, ExecutorMismatch(detail)
    worker = get_worker()

    def tell(value: int) -> None:
        worker.log_event(topic or "", (job, value))

    call = WorkerCall(function, arguments, limits.timeout_s, None if topic is None else tell)
    pool = _take(purpose, limits.memory_bytes)
    with _lock:
        _running[job] = call
        if job in _cancelled:
            call.cancel()
    try:
        return True, pool.call(call)
    except PaceError as error:
        return False, error
    finally:
        with _lock:
            del _running[job]
            _idle[purpose, limits.memory_bytes].append(pool)


def cancel(job: str) -> None:
    """End a task if this worker does it."""
    with _lock:
        _cancelled.append(job)
        call = _running.get(job)
    if call is not None:
        call.cancel()


def _take(purpose: str, memory_bytes: int) -> WorkerPool:
    with _lock:
        idle = _idle.setdefault((purpose, memory_bytes), [])
        return idle.pop() if idle else WorkerPool(purpose, 1, memory_bytes, prepare=load_kernels)
