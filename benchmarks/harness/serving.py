"""HTTP servers to measure: the service on a new SQLite database, and bare Starlette beside it."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

TIMEOUT_S = 600.0

_STARLETTE = """
import json, socket, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
{answer}
app = Starlette(routes=[Route("/{{path:path}}", answer, methods=["GET", "POST"])])
# Named TCP, or asyncio leaves TCP_NODELAY out.
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
listener.bind(("127.0.0.1", 0))
url = "http://127.0.0.1:%d" % listener.getsockname()[1]
print(json.dumps({{"event": "listening", "url": url}}), flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run([listener])
"""


@contextlib.contextmanager
def service(
    folder: Path, *, variables: Mapping[str, object] | None = None, **settings: object
) -> Iterator[str]:
    """Run the service on a free port with these settings and yield its address; its log is service.log.

    `variables` are environment variables of other programs.
    """
    environment = {f"PACE_{name.upper()}": str(value) for name, value in settings.items()}
    environment |= {name: str(value) for name, value in (variables or {}).items()}
    environment |= {"PACE_DATABASE_URL": f"sqlite:///{folder / 'pace.db'}"}
    command = ["-m", "pace.api.serve", "--port", "0"]
    with _running(command, folder / "service.log", environment) as url:
        yield url


def events(folder: Path) -> list[dict[str, Any]]:
    """Return what the service of a folder has logged."""
    return _lines(folder / "service.log")


@contextlib.contextmanager
def starlette(folder: Path, answer: str) -> Iterator[str]:
    """Run bare Starlette with one coroutine ``answer``, given as source; yield its address."""
    with _running(["-c", _STARLETTE.format(answer=answer)], folder / "starlette.log", {}) as url:
        yield url


@contextlib.contextmanager
def _running(command: Sequence[str], log: Path, environment: dict[str, str]) -> Iterator[str]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command], env=os.environ | environment, stdout=output, stderr=output
        )
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline and process.poll() is None:
            for line in _lines(log):
                if line.get("event") == "listening":
                    yield line["url"]
                    return
            time.sleep(0.05)
        raise RuntimeError(f"the server did not start:\n{log.read_text()}")
    finally:
        process.terminate()
        process.wait(60)


def _lines(log: Path) -> list[dict[str, Any]]:
    complete = log.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in complete.splitlines() if line.startswith("{")]
