"""Runs Python programs as forks of a process that has loaded torch and the package, which takes seconds each.

``python``, ``pace``, ``torchrun`` and ``accelerate`` of a folder that comes first on the path ask a server to
fork; whatever else a program has is its own: folder, environment, arguments, standard streams, process group
and exit code. Only what all-reduces cost is measured in less time, and Inductor makes code without vectors.
What such a program starts with ``sys.executable`` is a fork too. Ranks of torchrun start real processes,
because torch's compile workers end themselves without their own parent.
"""

import contextlib
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import sys
import threading
import time
from multiprocessing import spawn
from pathlib import Path
from typing import Any, Self

from tests.fork_server import ForkServer

ROOT = Path(__file__).resolve().parents[1]
# A module and a function of each; Python itself has none.
_FUNCTIONS = {
    "pace": ("pace.cli", "app"),
    "torchrun": ("torch.distributed.run", "main"),
    "accelerate": ("accelerate.commands.accelerate_cli", "main"),
}
COMMANDS = ("python", *_FUNCTIONS)
_SOCKET = "PACE_TEST_PROGRAMS"
_END_S = 20.0
_START_S = 250.0  # less than a test may take, so that its failure has the log

_ASK = f"""#!{sys.executable} -IS
import json, os, signal, socket, struct, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["{_SOCKET}"])
name = os.path.basename(sys.argv[0])
asked = json.dumps([name, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(connection, [struct.pack("i", len(asked))], [0, 1, 2])
connection.sendall(asked)
answer = connection.recv(4)
code = struct.unpack("i", answer)[0] if len(answer) == 4 else 1
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


_SERVER = ForkServer(__name__)


class Programs:
    """A process that forks programs, for as long as the context is open.

    Parameters
    ----------
    folder
        Where its socket is, whose path may have a hundred characters.
    modules
        What it loads beside what all need, if it is installed.

    Attributes
    ----------
    environment
        What has programs ask it.
    python
        The command that stands for the interpreter.
    """

    def __init__(self, folder: Path, *modules: str) -> None:
        self._modules = modules
        self._log = folder / "log"
        self._address = folder / "programs.sock"
        commands = folder / "commands"
        commands.mkdir(parents=True)
        for name in COMMANDS:
            (commands / name).write_text(_ASK)
            (commands / name).chmod(0o755)
        self.environment = {
            "PATH": f"{commands}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHON_EXEC": str(commands / "python"),  # what torchrun starts ranks with
            _SOCKET: str(self._address),
        }
        self.python = commands / "python"

    def __enter__(self) -> Self:
        """Start it and wait until it can be asked."""
        for module in self._modules:
            _SERVER.load(module)
        self._process = _SERVER.fork([str(self._address)], output=self._log, environment=os.environ)
        deadline = time.monotonic() + _START_S
        try:
            while not self._address.exists():
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline, f"no socket yet:\n{self._log.read_text()}"
                time.sleep(0.01)
        except BaseException:  # as a test's time-out
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        """End it."""
        self._process.kill()


def load() -> None:
    """Load what programs need, for the server that forks."""
    importlib.import_module("tests.runtime.launch").load_modules()
    importlib.import_module("tests.api.process").load()
    for needed in ("pace.cli", "torch.distributed.run"):
        importlib.import_module(needed)
    # As many all-reduces as exactness needs take a minute of each program that measures them.
    measure: Any = importlib.import_module("pace.runtime.profiler").measure_allreduce
    measure.__kwdefaults__["max_seconds_per_size"] = 0.1


def run(arguments: list[str]) -> int:
    """Be such a process, or a program that it has forked."""
    _run(*_serve(*arguments))
    return 0


def _serve(address: str) -> list[Any]:
    """Fork whenever asked to; returns only in programs, with what to run."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{address}.new")
    listener.listen(64)
    Path(f"{address}.new").rename(address)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the guards of programs are not waited for
    while True:
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
            continue
        os.setsid()  # what ends the group of whoever started this ends askers, and guards see to the rest
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        header, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
        rest = connection.makefile("rb").read(struct.unpack("i", header)[0])
        program = os.fork()
        if not program:
            connection.close()
            return _become(descriptors, *json.loads(rest))
        for descriptor in descriptors:
            os.close(descriptor)
        _guard(program, connection)


def _guard(program: int, connection: socket.socket) -> None:
    """Tell how a program ended; end it if whoever asked for it is gone."""

    def end_with_asker() -> None:
        with contextlib.suppress(ProcessLookupError):
            if not connection.recv(1):
                os.killpg(program, signal.SIGTERM)
                threading.Event().wait(_END_S)
                os.killpg(program, signal.SIGKILL)

    with contextlib.suppress(OSError):  # the program does it, too, and may have ended
        os.setpgid(program, program)
    threading.Thread(target=end_with_asker, daemon=True).start()
    _, status = os.waitpid(program, 0)
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(struct.pack("i", os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _become(
    descriptors: list[int], name: str, arguments: list[str], folder: str, environment: dict[str, str]
) -> list[Any]:
    os.setpgid(0, 0)
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    return [name, arguments]


def _run(name: str, arguments: list[str]) -> None:
    """Be a program, as the interpreter would run it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # which ranks have
        spawn.set_executable(sys.executable)  # workers of pools get descriptors that a fork has not
        sys.executable = os.environ["PYTHON_EXEC"]
    if (name == "pace" and arguments[:1] == ["serve"]) or arguments[:2] == ["-m", "pace.api.serve"]:
        importlib.import_module("tests.api.process").start_worker_server()
    if name != "python":
        sys.argv = [name, *arguments]
        module, function = _FUNCTIONS[name]
        getattr(importlib.import_module(module), function)()
        return
    while arguments[0].startswith("-") and arguments[0] not in ("-c", "-m"):
        arguments = arguments[1:]  # as -u, which changes how it writes
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if arguments[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], ""
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    elif arguments[0] == "-m":
        sys.argv, sys.path[0] = arguments[1:], os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")
