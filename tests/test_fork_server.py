"""What tests fork processes from: it leaves none behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from tests import fork_server


def load() -> None:
    """Load nothing: these forks only wait."""


def run(arguments: list[str]) -> int:
    """Say that it runs, and wait to be killed."""
    Path(arguments[0]).touch()
    time.sleep(600)
    return 0


def test_forks_end_with_who_asked_for_them_even_while_it_is_answered(tmp_path: Path) -> None:
    """Who asks may be gone before the server writes to it."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, fork_server.__file__, "tests.test_fork_server", str(theirs.fileno())]
        server = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    connection = Connection(ours.detach())
    started = tmp_path / "started"
    connection.send((1, "fork", [str(started)], str(tmp_path / "output"), dict(os.environ)))
    _, pid = connection.recv()
    while not started.exists():
        assert server.poll() is None
        time.sleep(0.01)
    server.send_signal(signal.SIGSTOP)
    connection.send((2, "poll", pid))
    connection.close()
    server.send_signal(signal.SIGCONT)
    assert server.wait(60) == 0
    deadline = time.monotonic() + 60
    while _runs(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE  # of a first process that reaps none
    except psutil.NoSuchProcess:
        return False
