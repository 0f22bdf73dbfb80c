"""HTTP servers to measure, the service on a new SQLite database and bare Starlette, and a large request."""

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


def large_profile(num_gradients: int = 10_000, *, per_layer: int = 5) -> dict[str, Any]:
    """Return a profile of a backward and a forward chain with so many ops a layer."""
    ops: list[dict[str, Any]] = []
    gradients: list[dict[str, Any]] = []
    for kind, layers in (("bwd", range(num_gradients - 1, -1, -1)), ("fwd", range(num_gradients))):
        for layer in layers:
            for part in range(per_layer):
                first_forward = kind == "fwd" and part == 0
                ops.append(
                    {
                        "name": f"{kind}/layer{layer}/part{part}",
                        "duration_s": 1e-5,
                        "stream": "compute",
                        "deps": [ops[-1]["name"]] if ops else [],
                        "waits_for": [f"layer{layer}.weight"] if first_forward else [],
                    }
                )
            if kind == "bwd":
                gradients.append(
                    {"name": f"layer{layer}.weight", "size_bytes": 40_000, "producer": ops[-1]["name"]}
                )
    return {
        "schema_version": 1,
        "name": "large",
        "workers": 8,
        "ops": ops,
        "gradients": gradients,
        "allreduce": {"kind": "affine", "latency_s": 1e-4, "seconds_per_byte": 1e-9},
    }
