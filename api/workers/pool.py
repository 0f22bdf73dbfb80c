"""Worker processes: one thread of the service controls each, kills it beyond its limits, and replaces it.

Workers are forks of a server process that has loaded their modules, never of the service, which has many
threads. A worker ends when the service ends, for whatever reason.
"""

import asyncio
import contextlib
import math
import multiprocessing
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import structlog

from pace.api.errors import LimitExceeded, ServiceStopping, WorkerDied, WorkerNotStarted
from pace.api.workers.executor import Progress
from pace.api.workers.fork_server import PRELOADED
from pace.api.workers.worker_process import NO_MEMORY, data_bytes, processor_s, work

log = structlog.get_logger(__name__)

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(list(PRELOADED))
_START_TIMEOUT_S = 300.0
_PENDING_S = 1.0
LOOK_EVERY_S = 0.5
_LOOK_AT_MEMORY_S = 0.05
_LONGEST_PAUSE_S = 30.0
_FORK_PAUSES_S = (0.05, 0.2, 0.5)

# An exit status can be read once, and Process.start reads those of all processes that have ended: of two
# threads that do so at a time, one is told 255.
_READS_STATUS = threading.Lock()


class WorkerCall:
    """A call of a function in a worker process, which another thread may cancel."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        timeout_s: float,
        progress: Progress | None,
        gives_way: bool = False,
        work_s: float = math.inf,
    ) -> None:
        self.request = (function, arguments, progress is not None, gives_way)
        self.timeout_s = timeout_s
        self.work_s = work_s
        self.progress = progress
        self.cancelled = False
        self._process: ForkServerProcess | None = None
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """Kill the process of this call, now or when the call starts."""
        with self._lock:
            self.cancelled = True
            if self._process is not None:
                self._process.kill()

    def begin(self, process: ForkServerProcess) -> None:
        """Set the process that runs the call."""
        with self._lock:
            self._process = process
            if self.cancelled:
                process.kill()

    def end(self) -> bool:
        """Clear the process of the call; return whether it was killed."""
        with self._lock:
            self._process = None
            return self.cancelled


class WorkerPool:
    """Runs functions, such as ``answer_question``, in processes with time and memory limits.

    Parameters
    ----------
    purpose
        Purpose of the calls, for names of threads and messages.
    size
        Number of processes.
    memory_bytes
        Memory in bytes that a process may allocate.
    prepare
        Called once in every new process, so that its first call finds everything loaded.
    """

    def __init__(
        self, purpose: str, size: int, memory_bytes: int, prepare: Callable[[], None] | None = None
    ) -> None:
        self.purpose = purpose
        self.size = size
        self.waiting = 0
        self._workers = [_Worker(purpose, memory_bytes, prepare) for _ in range(size)]
        # The last is used next: the one that was used last, and at first the one that is started.
        self._idle = self._workers[::-1]
        self._threads = ThreadPoolExecutor(size, thread_name_prefix=f"pace-{purpose}")
        self._closed = threading.Event()
        self._starting = threading.Lock()
        self._supervisor: threading.Thread | None = None

    def start(self) -> None:
        """Start the first process in the background, others once they are needed; replace those that die.

        Idempotent; the first call does it, too.
        """
        with self._starting:
            if self._supervisor is None and not self._closed.is_set():
                name = "pace-supervisor"
                self._supervisor = threading.Thread(target=self._supervise, name=name, daemon=True)
                self._supervisor.start()

    @property
    def started(self) -> bool:
        """Whether processes start and are replaced."""
        return self._supervisor is not None

    @property
    def was_tried(self) -> bool:
        """Whether a process has been ready, has died, or could not start."""
        return any(each.was_ready or each.num_restarts or each.could_not_start for each in self._workers)

    @property
    def num_alive(self) -> int:
        """Number of processes that work; 0 before the first is ready."""
        if not any(worker.was_ready for worker in self._workers):
            return 0
        return sum(worker.alive for worker in self._workers)

    @property
    def num_restarts(self) -> int:
        """Number of processes that were replaced."""
        return sum(worker.num_restarts for worker in self._workers)

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the processes in bytes; shared pages count for each."""
        return sum(worker.memory_bytes for worker in self._workers)

    def _supervise(self) -> None:
        with contextlib.suppress(WorkerNotStarted):  # tried again below
            self._workers[0].start()  # waits for the server that forks to load
        pause_s = LOOK_EVERY_S
        while not self._closed.wait(pause_s):
            deaths: list[str] = []
            for worker in self._workers:
                try:
                    death = worker.revive()
                except WorkerNotStarted as error:
                    death = str(error)
                deaths += [] if death is None else [death]
            for death in deaths:
                log.error("worker-restarted", reason=death)
            # Processes that die as soon as they start would otherwise keep a core busy.
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S) if deaths else LOOK_EVERY_S

    async def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        timeout_s: float,
        progress: Progress | None = None,
        gives_way: bool = False,
        work_s: float = math.inf,
        attempts: int = 1,
    ) -> Any:
        """Call a function in a worker process and return what it returns; see ``Executor.run``.

        The process is stopped after `timeout_s`, or when a processor has worked for it for `work_s`.
        If the process dies, another is tried, up to `attempts` times.
        """
        call = WorkerCall(function, arguments, timeout_s, progress, gives_way, work_s)
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self.call, call, attempts)
        except asyncio.CancelledError:
            call.cancel()
            raise
        finally:
            self.waiting -= 1

    def call(self, call: WorkerCall, attempts: int = 1) -> Any:
        """Run a call in this thread; at most as many threads as processes may do so."""
        self.start()
        worker = self._idle.pop()
        try:
            while True:
                attempts -= 1
                try:
                    return worker.call(call)
                except WorkerDied:
                    if attempts <= 0 or call.cancelled:
                        raise
        finally:
            self._idle.append(worker)

    def close(self) -> None:
        """Kill all processes."""
        with self._starting:
            self._closed.set()
        for worker in self._workers:
            worker.stop()
        self._threads.shutdown(wait=True, cancel_futures=True)
        if self._supervisor is not None:
            # It may be waiting for what the first process needs, which takes long with nothing compiled.
            self._supervisor.join(timeout=LOOK_EVERY_S)
        for worker in self._workers:
            worker.discard()


class _Worker:
    def __init__(self, purpose: str, memory_bytes: int, prepare: Callable[[], None] | None) -> None:
        self._purpose = purpose
        self._memory_bytes = memory_bytes
        self._prepare = prepare
        self.was_ready = self.could_not_start = False
        self.num_restarts = 0
        self._ready = False
        self._limit_bytes = 0  # known once it is ready
        self._wanted = False
        self._process: ForkServerProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self._stopped = threading.Event()
        self._starting = threading.Lock()
        self._in_use = threading.Lock()

    @property
    def alive(self) -> bool:
        process = self._process
        return process is not None and not wait([process.sentinel], 0)

    @property
    def memory_bytes(self) -> int:
        process = self._process
        try:
            pages = Path(f"/proc/{process.pid}/statm").read_text().split()[1] if process is not None else "0"
        except (OSError, IndexError):
            return 0  # it has just ended
        return int(pages) * resource.getpagesize()

    def start(self) -> None:
        """Start a process if there is none."""
        self._wanted = True
        with self._starting:
            if self._stopped.is_set() or self._process is not None:
                return
            self._process, self._connection = process, _ = self._fork()
            if self._stopped.is_set():
                process.kill()

    def _fork(self) -> "tuple[ForkServerProcess, Connection[Any, Any]]":
        """Fork a process; raises WorkerNotStarted."""
        for pause_s in _FORK_PAUSES_S:
            ours, theirs = _FORKS.Pipe()
            process = _FORKS.Process(
                target=work,
                args=(theirs, self._memory_bytes, self._prepare),
                name=f"pace-{self._purpose}",
                daemon=True,
            )
            try:
                with _READS_STATUS, _without_main_module():
                    process.start()
            except (EOFError, OSError) as error:
                # The server that forks was killed; the next start begins another, once its end is known.
                log.warning("worker-not-started", purpose=self._purpose, error=repr(error))
                ours.close()
                self._stopped.wait(pause_s)
            else:
                return process, ours
            finally:
                theirs.close()
        self.could_not_start = True
        raise WorkerNotStarted(f"no process for {self._purpose} could be started; ask again")

    def revive(self) -> str | None:
        """Replace a process that died while idle and return how it died; check whether it is ready."""
        if not self._in_use.acquire(blocking=False):
            return None  # whoever uses it replaces it
        try:
            process, connection = self._process, self._connection
            if self._stopped.is_set():
                return None
            if process is None or connection is None:
                if self._wanted:
                    self.start()  # it could not be started before
                return None
            if self.alive:
                try:
                    if not self._ready and connection.poll():
                        self._hear(connection)
                except (EOFError, OSError):
                    pass  # it is just dying: seen at the next look
                return None
            exitcode = _exitcode(process)
            self._replace()
            return _death(self._purpose, exitcode)
        finally:
            self._in_use.release()

    def _hear(self, connection: "Connection[Any, Any]") -> None:
        self._limit_bytes = connection.recv()
        self._ready = self.was_ready = True

    def call(self, call: WorkerCall) -> Any:
        with self._in_use:
            return self._call(call)

    def _call(self, call: WorkerCall) -> Any:
        with contextlib.nullcontext() if self._ready else _told_if_pending(self._purpose):
            process, connection = self._started()
        try:
            call.begin(process)
            succeeded, value = self._converse(process, connection, call)
            if call.end():
                raise EOFError
        except (EOFError, OSError):
            call.end()
            self._give_up(process)
        if succeeded:
            return value
        if isinstance(value, LimitExceeded):
            # A process that ran out of memory is not to be trusted with the next request.
            self._replace()
        raise value

    def _started(self) -> "tuple[ForkServerProcess, Connection[Any, Any]]":
        """Return the process and its connection, once it is ready; no request's time is charged with that."""
        self.start()
        if not self.alive:
            self._replace()
        process, connection = self._process, self._connection
        if process is None or connection is None:
            raise ServiceStopping("the service is stopping")
        if not self._ready:
            if not wait([connection, process.sentinel], _START_TIMEOUT_S):
                process.kill()  # a start that hangs
            try:
                self._hear(connection)
            except (EOFError, OSError):
                self._give_up(process)
        return process, connection

    def _give_up(self, process: ForkServerProcess) -> NoReturn:
        exitcode = _exitcode(process)
        self._replace()
        raise WorkerDied(_death(self._purpose, exitcode)) from None

    def _converse(
        self, process: ForkServerProcess, connection: "Connection[Any, Any]", call: WorkerCall
    ) -> tuple[bool, Any]:
        """Return whether the function returned, and its result or its error."""
        worked_s = processor_s(process.pid)
        connection.send(call.request)
        deadline = time.monotonic() + call.timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            if not wait([connection, process.sentinel], min(left_s, _LOOK_AT_MEMORY_S)):
                if left_s <= _LOOK_AT_MEMORY_S:
                    spent = f"{self._purpose} took longer than {call.timeout_s:g} s and was stopped"
                elif processor_s(process.pid) - worked_s > call.work_s:
                    spent = f"{self._purpose} took more than {call.work_s:.0f} s of CPU time and was stopped"
                elif data_bytes(process.pid) > self._limit_bytes:
                    spent = NO_MEMORY
                else:
                    continue
                call.end()
                self._replace()
                raise LimitExceeded(spent)
            kind, value = connection.recv()
            if kind != "progress":
                return kind == "returned", value
            if call.progress is not None:
                call.progress(value)

    def _replace(self) -> None:
        self.num_restarts += not self._stopped.is_set()
        self.discard()
        self.start()

    def stop(self) -> None:
        self._stopped.set()  # seen by a start that is under way, which may take long
        if (process := self._process) is not None:
            process.kill()

    def discard(self) -> None:
        if self._process is not None:
            self._process.kill()
            _exitcode(self._process)
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None
        self._ready = False


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    """Keep a process that starts from importing this program: it needs nothing of the command line."""
    ours = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = ours


def _exitcode(process: ForkServerProcess) -> int | None:
    """Wait until a process has ended; return its exit status."""
    wait([process.sentinel])
    with _READS_STATUS:
        process.join()
        return process.exitcode


@contextlib.contextmanager
def _told_if_pending(purpose: str) -> Iterator[None]:
    timer = threading.Timer(_PENDING_S, lambda: log.info("worker-pending", purpose=purpose))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _death(purpose: str, exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        how = f"was ended by signal {signal.Signals(-exitcode).name}"
    else:
        how = f"ended with status {exitcode}"
    return f"the process for {purpose} {how}"
