"""Ranks that stay: real worker processes that run one task after another until they are told to stop.

Starting ranks takes seconds, and a property needs hundreds of runs. After a run that failed, whatever the
reason, ranks may wait for one another or hold what is left of it: they are ended and new ones started.
"""

import contextlib
import importlib
import os
import pickle
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any

from tests.runtime.launch import Backend, try_ranks

_AFTER_A_FAILURE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Failed:
    """What a rank returns when its task raised, or when it was gone or late: why, in words."""

    reason: str


class RankPool:
    """Real ranks that run tasks: functions at the top level of a module of tests.

    Parameters
    ----------
    backend
        What ranks are launched with.
    timeout_s
        How long a task may take.
    """

    def __init__(self, size: int, *, backend: Backend = "gloo", timeout_s: float = 200.0) -> None:
        self.size = size
        self.backend = backend
        self._timeout_s = timeout_s
        self._connections: list[Connection] = []
        self._processes: list[int] = []
        self._thread: threading.Thread | None = None
        self._kept: dict[bytes, list[Any]] = {}

    def __enter__(self) -> "RankPool":
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop()

    def run(self, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run ``task(rank, *arguments)`` on every rank; `Failed` stands for what a rank did not return."""
        if self._thread is None:
            self._start()
        request = pickle.dumps((task.__module__, task.__qualname__, arguments))
        found: list[Any] = []
        try:
            for connection in self._connections:
                connection.send_bytes(request)
            found = self._receive_all()
        finally:
            # After an interruption too: answers that come later would be taken for another task's.
            if not found or any(isinstance(each, Failed) for each in found):
                self.stop(kill=True)
        return found

    def results(self, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run a task as ``run`` does; none of the ranks may fail."""
        found = self.run(task, *arguments)
        reasons = [
            f"rank {rank}: {each.reason}" for rank, each in enumerate(found) if isinstance(each, Failed)
        ]
        assert not reasons, "\n".join(reasons)
        return found

    def results_once(self, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run a task that always returns the same, once; what it returns is not to be changed."""
        request = pickle.dumps((task.__module__, task.__qualname__, arguments))
        if request not in self._kept:
            self._kept[request] = self.results(task, *arguments)
        return self._kept[request]

    def _receive_all(self) -> list[Any]:
        """Wait for all answers; after a rank has failed, the others have little time left."""
        found: dict[int, Any] = {}
        deadline, late = time.monotonic() + self._timeout_s, f"within {self._timeout_s:g} s"
        while len(found) < self.size:
            left = [each for rank, each in enumerate(self._connections) if rank not in found]
            ready = wait(left, max(deadline - time.monotonic(), 0.0))
            for rank, connection in enumerate(self._connections):
                if connection in ready:
                    found[rank] = _answer(connection)
                    if isinstance(found[rank], Failed):
                        deadline = min(deadline, time.monotonic() + _AFTER_A_FAILURE_S)
                        late = f"after rank {rank} had failed: {found[rank].reason}"
                elif not ready and rank not in found:
                    found[rank] = Failed(reason=f"the rank did not answer {late}")
        return [found[rank] for rank in range(self.size)]

    def _start(self) -> None:
        with tempfile.TemporaryDirectory(prefix="pace-pool-") as folder:
            address = str(Path(folder, "socket"))
            with Listener(address, "AF_UNIX", backlog=self.size) as listener:
                self._thread = threading.Thread(
                    target=try_ranks,
                    args=(_serve, self.size, address),
                    kwargs={"backend": self.backend, "timeout_s": 1e6},
                    daemon=True,
                )
                self._thread.start()
                accepted = []
                for _ in range(self.size):
                    connection = listener.accept()
                    accepted.append((*connection.recv(), connection))
        for _, process, connection in sorted(accepted, key=lambda each: each[0]):
            self._processes.append(process)
            self._connections.append(connection)

    def stop(self, *, kill: bool = False) -> None:
        """End the ranks; the next task starts new ones."""
        if self._thread is None:
            return
        for process in self._processes if kill else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for connection in self._connections:
            connection.close()  # which ends a rank that waits for a task
        self._thread.join()
        self._connections, self._processes, self._thread = [], [], None


def _answer(connection: Connection) -> Any:
    try:
        reason, value = pickle.loads(connection.recv_bytes())
    except (EOFError, OSError) as error:
        return Failed(reason=f"the rank is gone: {error!r}")
    return value if reason is None else Failed(reason=reason)


def _serve(rank: int, _size: int, address: str) -> None:
    with Client(address, "AF_UNIX") as connection:
        connection.send((rank, os.getpid()))
        while True:
            try:
                module, name, arguments = pickle.loads(connection.recv_bytes())
            except EOFError:
                return
            reason, value = None, None
            try:
                value = getattr(importlib.import_module(module), name)(rank, *arguments)
            except Exception:
                reason = traceback.format_exc()
            connection.send_bytes(pickle.dumps((reason, value)))
