"""Runs ``pace`` and Python scripts in processes of their own: forks of one that has loaded torch.

A script ends as the interpreter ends, with all that this takes apart, and so does its error.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Any, Self

from tests.fork_server import ForkedProcess
from tests.runtime.launch import SERVERS

_WITHIN_S = 200.0


class ForkedProgram:
    """A process that runs a program; it ends with the context, if not before.

    Parameters
    ----------
    kind
        "pace", a command of which `words` are the arguments; "-c", a text, or "file", a path, of a script,
        which comes first in `words`.
    environment
        What it has beside this process's own.

    Attributes
    ----------
    process
        The process.
    """

    def __init__(self, kind: str, *words: object, environment: Mapping[str, str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pace-program-")
        self._paths = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        for path in self._paths:
            path.touch()
        self.process: ForkedProcess = SERVERS[0].fork(
            ["program", str(self._paths[0]), kind, *map(str, words)],
            output=self._paths[1],
            environment=os.environ | {"OMP_NUM_THREADS": "1"} | dict(environment or {}),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    @property
    def stdout(self) -> str:
        """What it has printed."""
        return self._paths[0].read_text()

    @property
    def stderr(self) -> str:
        """What it has said."""
        return self._paths[1].read_text()

    def line(self, number: int = 0) -> str:
        """Wait for a line of its output."""
        return self._line(self._paths[0], "", number)

    def said(self, beginning: str) -> str:
        """Wait for a message that begins so, and return the rest of it."""
        return self._line(self._paths[1], beginning, 0)

    def _line(self, path: Path, beginning: str, number: int) -> str:
        deadline = time.monotonic() + _WITHIN_S
        while True:
            ended = self.process.poll() is not None
            lines = path.read_text().splitlines(keepends=True)
            found = [line for line in lines if line.endswith("\n") and line.startswith(beginning)]
            if len(found) > number:
                return found[number].removeprefix(beginning).strip()
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"line {number} of {beginning!r} is missing: {self.stdout}{self.stderr}")
            time.sleep(0.005)

    def result(self, timeout_s: float = 280.0) -> "subprocess.CompletedProcess[str]":
        """Wait until it has ended; return how, and what it has written."""
        code = self.process.wait(timeout_s)
        return subprocess.CompletedProcess([], code, self.stdout, self.stderr)

    def close(self) -> None:
        """End it as a crash would, if it runs. Idempotent."""
        self.process.kill()
        self._folder.cleanup()


def pace(*words: object, environment: Mapping[str, str] | None = None) -> ForkedProgram:
    """Start a command of ``pace``."""
    return ForkedProgram("pace", *words, environment=environment)


def script(text: str, *arguments: object, environment: Mapping[str, str] | None = None) -> ForkedProgram:
    """Start what ``python -c`` would run."""
    return ForkedProgram("-c", text, *arguments, environment=environment)


def run(arguments: list[str]) -> "int | CodeType":
    """Be a program, or return the code of a script, which the interpreter is to run as its main module."""
    output, kind, *words = arguments
    with Path(output).open("wb") as file:
        os.dup2(file.fileno(), 1)
    if kind == "pace":
        from pace.cli import app

        sys.argv = ["pace", *words]
        app()
        return 0
    main: Any = sys.modules["__main__"]
    if kind == "file":
        main.__file__ = words[0]
        sys.path.insert(0, str(Path(words[0]).parent))
        text, name = Path(words[0]).read_text(), words[0]
    else:
        text, name = words[0], "<string>"
    sys.argv = [name if kind == "file" else "-c", *words[1:]]
    return compile(text, name, "exec")
