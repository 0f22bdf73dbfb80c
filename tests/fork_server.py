"""Starts processes as forks of one that has loaded what they need, which takes seconds of CPU each time.

Where several processes run tests, what is loaded is loaded once for all of them: each gets a fork of the
process that has done it.

What a server forks is a module with two functions: ``load()``, which imports and starts no thread, and
``run(arguments)``, which does the work and returns the process's exit code, or code that is to be run as the
main module. Everything that a process of its own has is the fork's own: its id, environment, output, random
numbers, and what is done at its exit.
"""

import atexit
import contextlib
import faulthandler
import fcntl
import gc
import importlib
import math
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType
from typing import IO, Any, NoReturn

# The folder of the servers that processes with tests share, and the process whose end is theirs.
_SHARED = "PACE_TEST_SERVERS"
_LOOK_EVERY_S = 1.0
# Where tests and those who start servers find modules.
_ROOT = Path(__file__).resolve().parents[1]
# Less than a test may take, so that its failure has the log.
_START_S = 250.0
_LOG_CHARACTERS = 4000


@contextlib.contextmanager
def shared_servers() -> Iterator[None]:
    """Have processes that are started in this context share what their servers have loaded."""
    with tempfile.TemporaryDirectory(prefix="pace-servers-") as folder:
        os.environ[_SHARED] = f"{os.getpid()} {folder}"
        try:
            yield
        finally:
            del os.environ[_SHARED]


class ForkServer:
    """A process that forks others; all of them end with the one that asks, however that ends.

    Parameters
    ----------
    module
        The name of the module whose processes it starts.
    hash_seed
        The seed of Python's hashes, and so of the order of sets, in all of them.
    """

    def __init__(self, module: str, *, hash_seed: int = 1) -> None:
        self.module = module
        self.hash_seed = hash_seed
        self._connection: Connection | None = None
        self._num_lost = 0
        self._log: Path | None = None
        self._shared: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._asked = 0

    def fork(
        self, arguments: Sequence[str], *, output: Path, environment: Mapping[str, str]
    ) -> "ForkedProcess":
        """Start a process.

        Parameters
        ----------
        output
            The file to which the process appends all that it writes.
        environment
            The whole of its environment.
        """
        output.touch()  # whoever reads it finds it
        pid = self.ask("fork", list(arguments), str(output), dict(environment))
        return ForkedProcess(self, pid, self._num_lost)

    def load(self, module: str) -> None:
        """Load one more module, which processes find from now on."""
        self.ask("load", module)

    def ask(self, kind: str, *arguments: Any) -> Any:
        """Send the server a request and return its answer.

        Raises
        ------
        RuntimeError
            If the server ends meanwhile, or has ended, with the end of its log. The next request starts
            another.
        """
        with self._lock:
            if self._connection is None:
                self._connection = self._start()
            self._asked += 1
            try:
                self._connection.send((self._asked, kind, *arguments))
                while True:
                    number, answer = self._connection.recv()
                    # An earlier one is that of a request that a test's time-out interrupted.
                    if number == self._asked:
                        return answer
            except (EOFError, BrokenPipeError, ConnectionResetError) as error:
                self._connection.close()
                self._connection = None
                self._num_lost += 1
                said = "standard error" if self._log is None else _tail(self._log)
                raise RuntimeError(f"what forks {self.module} has ended; its log:\n{said}") from error

    def has_lost(self, num_lost: int) -> bool:
        """Whether the server has ended since as many as these had."""
        return self._num_lost != num_lost

    def _start(self) -> Connection:
        if _SHARED in os.environ:
            return self._connect(*os.environ[_SHARED].split(" ", 1))
        ours, theirs = socket.socketpair()
        with theirs:
            process = self._popen(str(theirs.fileno()), pass_fds=[theirs.fileno()])
        connection = Connection(ours.detach())
        atexit.register(_end, process, connection)
        return connection

    def _connect(self, owner: str, folder: str) -> Connection:
        address, lock, log = (
            Path(folder, f"{self.module}-{self.hash_seed}{kind}") for kind in ("", ".lock", ".log")
        )
        self._log = log
        deadline = time.monotonic() + _START_S
        with lock.open("w") as locked, log.open("a") as output:
            while not _is_locked(locked):
                assert time.monotonic() < deadline, f"another process starts it for long:\n{_tail(log)}"
                time.sleep(0.02)
            if (connection := _connected(address)) is None:
                # Those of one that has ended.
                for left in (address, Path(f"{address}.new")):
                    left.unlink(missing_ok=True)
                # It outlives this process, if others are still at work.
                self._shared = self._popen(
                    str(address), owner, stdout=output, stderr=output, start_new_session=True
                )
                deadline = time.monotonic() + _START_S
                while (connection := _connected(address)) is None:
                    assert self._shared.poll() is None, _tail(log)
                    assert time.monotonic() < deadline, f"it does not listen yet:\n{_tail(log)}"
                    time.sleep(0.02)
        return connection

    def _popen(self, *place: str, **options: Any) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, __file__, self.module, *place],
            cwd=_ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(self.hash_seed)},
            stdin=subprocess.DEVNULL,
            **options,
        )


def _is_locked(file: IO[str]) -> bool:
    """Lock a file, unless another process has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _connected(address: Path) -> Connection | None:
    """Return a connection, or None if nobody listens."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(address))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    return Connection(connection.detach())


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-_LOG_CHARACTERS:]


def _end(process: "subprocess.Popen[bytes]", connection: Connection) -> None:
    connection.close()
    process.wait()


class ForkedProcess:
    """A process that a fork server started."""

    def __init__(self, server: ForkServer, pid: int, num_lost: int) -> None:
        self.pid = pid
        self._server = server
        self._num_lost = num_lost
        self._exit_code: int | None = None
        # Can be read once it has ended: asking the server again and again would take both of them time.
        self._watched = os.pidfd_open(pid)
        self._unwatch = weakref.finalize(self, os.close, self._watched)
        self._unwatch.atexit = False

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs.

        Raises
        ------
        RuntimeError
            If the server that forked it has ended, which alone could know.
        """
        if self._exit_code is None:
            if self._server.has_lost(self._num_lost):
                raise RuntimeError(f"what forked process {self.pid} has ended; its exit code is unknown")
            if self._has_ended():
                self._exit_code = self._server.ask("poll", self.pid)
                assert self._exit_code is not None
                self._unwatch()
        return self._exit_code

    def _has_ended(self, within_s: float = 0.0) -> bool:
        """Whether the process ends within so many seconds."""
        poller = select.poll()
        poller.register(self._watched, select.POLLIN)
        return bool(poller.poll(1000 * within_s))

    def wait(self, timeout_s: float = math.inf) -> int:
        """Wait until it has ended and return its exit code."""
        deadline = time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"process {self.pid} did not end within {timeout_s:g} s")
            self._has_ended(within_s=min(left_s, _LOOK_EVERY_S))
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        # Its id is given to no other process before it is polled.
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it if it runs, as a crash would (kill -9), and wait until it has ended."""
        if self._exit_code is None and self._server.has_lost(self._num_lost):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            return
        while self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._has_ended(within_s=_LOOK_EVERY_S)


def _serve(connection: Connection) -> list[str]:
    """Fork whenever asked to; returns only in forked processes, their arguments."""
    # Ctrl-C reaches the whole process group; the server ends when its caller does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    running: set[int] = set()
    while True:
        try:
            forked = _answer(connection, running)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            sys.exit(0)
        if forked is not None:
            connection.close()
            return _become(*forked)


def _answer(connection: Connection, running: set[int]) -> list[Any] | None:
    """Do what is asked for next; return None, but in a forked process what it is to become."""
    number, kind, *arguments = connection.recv()
    answer: int | None = None
    become: list[Any] = arguments
    if kind == "poll":
        found, status = os.waitpid(arguments[0], os.WNOHANG)
        running.discard(found)
        answer = os.waitstatus_to_exitcode(status) if found else None
    elif kind == "load":
        with contextlib.suppress(Exception):  # an error of the process that needs it
            importlib.import_module(arguments[0])
        gc.freeze()
    else:
        answer = os.fork()
        if not answer:
            return become
        running.add(answer)
    connection.send((number, answer))
    return None


def _share(address: str, owner: int) -> Connection:
    """Fork a server for whoever connects; returns only in those, their connections."""
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # they are not waited for
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{address}.new")
        listener.listen(64)
        Path(f"{address}.new").rename(address)
        while True:
            readable, _, _ = select.select([listener], [], [], _LOOK_EVERY_S)
            try:
                os.kill(owner, 0)
            except ProcessLookupError:
                sys.exit(0)
            if not Path(address).exists():  # the owner has ended, and may not be waited for by anybody
                sys.exit(0)
            if not readable:
                continue
            connection, _ = listener.accept()
            if os.fork():
                connection.close()
                continue
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return Connection(connection.detach())


def _become(arguments: list[str], output: str, environment: dict[str, str]) -> list[str]:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
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


def leave(code: int) -> NoReturn:
    """End this process as the interpreter would, but for taking apart all that is loaded: 0.3 s of CPU."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _main(module: str, place: str, *owner: str) -> CodeType:
    """Serve; in a fork, do its work and end it, or return the code of its main module.

    The place is a descriptor that is connected, or the address at which processes with tests connect.
    """
    # Modules are loaded from the root of the repository, as tests are.
    sys.path[0] = str(_ROOT)
    program = importlib.import_module(module)
    program.load()
    connection = _share(place, int(owner[0])) if owner else Connection(int(place))
    arguments = _serve(connection)
    try:
        code: object = program.run(arguments)
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        # What the interpreter does before what is registered for its exit.
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    if isinstance(code, CodeType):
        return code
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    leave(code or 0)


if __name__ == "__main__":
    # In the names of the main module, and last of all: what it keeps, the interpreter takes apart as it ends.
    exec(_main(*sys.argv[1:]))
