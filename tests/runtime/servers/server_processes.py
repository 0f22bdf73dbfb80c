"""``pace servers serve`` in processes of its own, for tests that train with it or end it."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

PACE = [sys.executable, "-c", "from pace.cli.main import app; app()"]


@contextlib.contextmanager
def served(number: int, *options: str) -> Iterator[tuple[list[str], list[int]]]:
    """Where so many servers listen, and their process ids."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for _ in range(number):
            command = [*PACE, "servers", "serve", "--bind", "127.0.0.1:0", *options]
            processes.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        addresses = []
        for process in processes:
            assert process.stderr is not None
            addresses.append(process.stderr.readline().removeprefix("listening on ").strip())
        yield addresses, [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
