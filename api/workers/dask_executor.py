"""Runs tasks on a Dask cluster, with the semantics of worker processes. Needs ``pace-scheduler[dask]``.

The service itself has no client of Dask: a process of its own does (``pace.api.workers.dask_bridge``), which
is started again when it ends. From it come JSON and bytes, which are believed no more than a stranger's.
"""

import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import structlog

from pace import errors as library_errors
from pace.api import errors as service_errors
from pace.api.errors import WorkerDied, WorkerFailed
from pace.api.questions.all_kinds import answer_question
from pace.api.workers.executor import Progress
from pace.errors import PaceError

log = structlog.get_logger(__name__)

Pipe: TypeAlias = "Connection[Any, Any]"

_PAUSE_S = 1.0
# A process for the cluster needs none of the service's secrets.
_SECRET = ("PACE_", "AWS_", "PG", "OTEL_")


def send(other: Pipe, told: dict[str, Any], document: bytes = b"") -> None:
    """Send a frame; the caller must prevent other threads from sending at the same time."""
    other.send_bytes(json.dumps(told).encode() + b"\n" + document)


def receive(other: Pipe) -> tuple[dict[str, Any], bytes]:
    """Receive a frame; raises EOFError or OSError at the end, and ValueError for invalid data."""
    line, _, document = other.recv_bytes().partition(b"\n")
    told = json.loads(line)
    if not isinstance(told, dict):
        raise ValueError("a frame's first line is no object")
    return told, document


class DaskBridge:
    """The process that talks to the cluster, and what it works on.

    Parameters
    ----------
    address
        Address of the scheduler, such as ``tcp://scheduler:8786``.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Pipe | None = None
        self._num_threads = 0
        self._results: dict[str, Future[bytes]] = {}
        self._listeners: dict[str, Progress] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._minder: threading.Thread | None = None

    def start(self) -> None:
        """Start the process, in the background."""
        if self._minder is None:
            self._minder = threading.Thread(target=self._mind, name="pace-dask", daemon=True)
            self._minder.start()

    def close(self) -> None:
        """End the process; the cluster drops its running jobs."""
        self._ended.set()
        if self._process is not None:
            self._process.kill()
        if self._minder is not None:
            self._minder.join()
            self._minder = None

    @property
    def num_threads(self) -> int:
        """How many threads the cluster's workers have; none while it cannot be reached."""
        return self._num_threads

    def run(
        self, job: str, command: dict[str, Any], document: bytes, progress: Progress | None
    ) -> Future[bytes]:
        """Begin a job."""
        result: Future[bytes] = Future()
        self._results[job] = result
        if progress is not None:
            self._listeners[job] = progress
        if not self._send({"do": "run", "job": job, **command}, document):
            self._finish(job, WorkerDied("there is no process that talks to the cluster"))
        return result

    def cancel(self, job: str) -> None:
        """End a job for which nobody waits."""
        self._results.pop(job, None)
        self._listeners.pop(job, None)
        self._send({"do": "cancel", "job": job}, b"")

    def _send(self, told: dict[str, Any], document: bytes) -> bool:
        with self._lock:
            if self._pipe is None:
                return False
            try:
                send(self._pipe, told, document)
            except OSError:
                return False
            return True

    def _mind(self) -> None:
        while not self._ended.is_set():
            environment = {name: value for name, value in os.environ.items() if not name.startswith(_SECRET)}
            ours, theirs = multiprocessing.Pipe()
            with theirs:
                command = [sys.executable, "-m", "pace.api.workers.dask_bridge"]
                process = subprocess.Popen(
                    [*command, self.address, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env=environment,
                )
            self._process, self._pipe = process, ours
            if self._ended.is_set():
                process.kill()
            try:
                while True:
                    self._hear(*receive(ours))
            except (EOFError, OSError):
                reason = "ended"
            except Exception as error:  # what it says makes no sense
                reason = f"said what is no frame: {type(error).__name__}"
            process.kill()
            process.wait()
            self._num_threads = 0
            for job in list(self._results):
                self._finish(job, WorkerDied(f"the process that talks to the cluster {reason}"))
            with self._lock:
                self._pipe = None
                ours.close()
            if not self._ended.is_set():
                log.error("dask-bridge-restarted", reason=reason)
                self._ended.wait(_PAUSE_S)

    def _hear(self, told: dict[str, Any], document: bytes) -> None:
        match told:
            case {"is": "capacity", "threads": int(threads)}:
                self._num_threads = max(0, threads)
            case {"is": "progress", "job": str(job), "value": int(value)}:
                progress = self._listeners.get(job)
                if progress is not None:
                    progress(value)
            case {"is": "returned", "job": str(job)}:
                self._finish(job, document)
            case {"is": "raised", "job": str(job), "error": str(name), "detail": str(detail)}:
                self._finish(job, _error(name, detail))
            case _:
                raise ValueError("no such frame")

    def _finish(self, job: str, outcome: bytes | PaceError) -> None:
        self._listeners.pop(job, None)
        result = self._results.pop(job, None)
        if result is None or not result.set_running_or_notify_cancel():
            return
        if isinstance(outcome, bytes):
            result.set_result(outcome)
        else:
            result.set_exception(outcome)


def _error(name: str, detail: str) -> PaceError:
    """Return the error of this name, if it is one that work may raise."""
    for module in (service_errors, library_errors):
        kind = getattr(module, name, None)
        if isinstance(kind, type) and issubclass(kind, PaceError):
            try:
                return kind(detail)
            except TypeError:  # it needs more than a message: none that work raises
                break
    return WorkerFailed(name)


class DaskExecutor:
    """An executor on a cluster.

    Parameters
    ----------
    purpose
        Goes into messages.
    memory_bytes
        Memory in bytes that a process may allocate.
    priority
        Higher goes first.
    most
        At most so many at once; else as many as the cluster has threads.
    """

    def __init__(
        self,
        bridge: DaskBridge,
        purpose: str,
        memory_bytes: int,
        *,
        priority: int = 0,
        most: int | None = None,
    ) -> None:
        self._bridge = bridge
        self._purpose = purpose
        self._memory_bytes = memory_bytes
        self._priority = priority
        self._most = most

    @property
    def size(self) -> int:
        """How many can run at once; none while the cluster cannot be reached."""
        threads = self._bridge.num_threads
        return threads if self._most is None else min(threads, self._most)

    @property
    def num_alive(self) -> int:
        """How many threads the cluster's workers have."""
        return self._bridge.num_threads

    def start(self) -> None:
        """Connect, in the background."""
        self._bridge.start()

    def close(self) -> None:
        """Leave the cluster."""
        self._bridge.close()

    async def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        timeout_s: float,
        progress: Progress | None = None,
        gives_way: bool = False,  # noqa: ARG002  # the cluster's cores are not those that answer
    ) -> Any:
        """Call a function on the cluster and return what it returns; see ``Executor.run``."""
        assert function is answer_question, "the process that talks to the cluster knows no other"
        kind, document, options = arguments
        job = uuid.uuid4().hex
        command = {
            "kind": kind,
            "options": options,
            "purpose": self._purpose,
            "timeout_s": timeout_s,
            "memory_bytes": self._memory_bytes,
            "priority": self._priority,
            "progress": progress is not None,
        }
        begun = await asyncio.to_thread(self._bridge.run, job, command, document, progress)
        try:
            return await asyncio.wrap_future(begun)
        except asyncio.CancelledError:
            await asyncio.to_thread(self._bridge.cancel, job)
            raise
