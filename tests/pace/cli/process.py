"""Runs ``pace`` in processes of their own: forks of one that has loaded what its commands need."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fork_server import ForkServer

_SERVER = ForkServer(__name__)


def pace(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run a command and return how it ended and what it printed."""
    words = [str(argument) for argument in arguments]
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder) / "stdout", Path(folder) / "stderr"
        process = _SERVER.fork([str(output), *words], output=errors, environment=os.environ)
        try:
            code = process.wait(250)
        finally:
            process.kill()
        return subprocess.CompletedProcess(["pace", *words], code, output.read_text(), errors.read_text())


def load() -> None:
    """Load the commands, and the compiled functions of a plan."""
    import pace.cli  # noqa: F401 - loaded, not used
    from pace.planning.warm_up import warm_up

    warm_up()


def run(arguments: list[str]) -> int:
    """Be the command, with a standard output apart from the messages."""
    from pace.cli import app

    output, *words = arguments
    with Path(output).open("wb") as file:
        os.dup2(file.fileno(), 1)
    sys.argv = ["pace", *words]
    app()
    return 0
