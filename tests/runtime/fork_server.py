"""Starts ranks as forks of a process that has loaded torch: loading it takes seconds of CPU for every rank.

Two such processes stay for as long as the tests run. They differ as the processes of a real job do: in the
seed of Python's hashes, and so in the order of sets, and in memory addresses. Neighboring ranks come from
different ones.
"""

import atexit
import contextlib
import faulthandler
import functools
import gc
import importlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

NUM_SERVERS = 2

# What nearly all ranks load. Nothing of it starts a thread before it is used.
_LOADED_ONCE = (
    "torch",
    "torch._dynamo",  # which torch's optimizers load when the first is built
    "torch.distributed",
    "numpy",
    "hypothesis",
    "pytest",
    "pace.runtime.torch",
    "tests.runtime.models",
    "tests.runtime.schedules",
    "tests.runtime.training",
)
_LOADED_WHERE_INSTALLED = {"horovod": ("horovod.torch", "pace.runtime.horovod")}


class ForkServer:
    """A process that forks others; it ends with the one that asks, however that ends."""

    def __init__(self, number: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("launch.py")), str(theirs.fileno())],
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(1 + number)},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._connection = Connection(ours.detach())
        self._lock = threading.Lock()
        self._asked = 0
        atexit.register(self._end)

    def _end(self) -> None:
        self._connection.close()
        self._process.wait()

    def ask(self, kind: str, *arguments: Any) -> Any:
        """Send a request and return its answer."""
        with self._lock:
            self._asked += 1
            self._connection.send((self._asked, kind, *arguments))
            while True:
                number, answer = self._connection.recv()
                # An earlier one is that of a request that a test's time-out interrupted.
                if number == self._asked:
                    return answer


class ForkedProcess:
    """A process that a fork server started."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        if self._exit_code is None:
            self._exit_code = self._server.ask("poll", self.pid)
        return self._exit_code

    def kill(self) -> None:
        """End it if it runs, as a crash would (kill -9), and wait until it has ended."""
        # Its id is given to no other process before it is polled.
        while self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.001)


@functools.cache
def _server(number: int) -> ForkServer:
    return ForkServer(number)


_starting = threading.Lock()


def fork(rank: int, arguments: Sequence[str], output: Path, environment: Mapping[str, str]) -> ForkedProcess:
    """Fork a process that runs ``launch.py`` with these arguments.

    Parameters
    ----------
    output
        The file that receives what the process writes.
    environment
        The whole of its environment.
    """
    with _starting:
        server = _server(rank % NUM_SERVERS)
    pid = server.ask("fork", list(arguments), str(output), dict(environment))
    return ForkedProcess(server, pid)


def serve(descriptor: int) -> list[str]:
    """Fork whenever asked to, until nobody can ask any more.

    Returns
    -------
    list of str
        In a forked process, its arguments. In the server it does not return.
    """
    # Ctrl-C reaches the whole process group; the server ends when its caller does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _load()
    gc.freeze()
    connection = Connection(descriptor)
    while True:
        try:
            number, kind, *arguments = connection.recv()
        except (EOFError, ConnectionResetError):
            sys.exit(0)
        if kind == "poll":
            found, status = os.waitpid(arguments[0], os.WNOHANG)
            connection.send((number, os.waitstatus_to_exitcode(status) if found else None))
            continue
        pid = os.fork()
        if pid:
            connection.send((number, pid))
            continue
        connection.close()
        return _become_rank(*arguments)


def _load() -> None:
    names = list(_LOADED_ONCE)
    for package, modules in _LOADED_WHERE_INSTALLED.items():
        if importlib.util.find_spec(package) is not None:
            names += modules
    for name in names:
        # What cannot be loaded is an error of the rank that needs it.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _become_rank(arguments: list[str], output: str, environment: dict[str, str]) -> list[str]:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # Python's own generator is seeded anew by a fork
    return arguments
