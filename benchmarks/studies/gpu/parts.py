"""The parts of the check, in their order, and how each runs in a process group of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part; `module`, in this folder, has a function of its name with arguments ``findings, setting``.

    Attributes
    ----------
    limit_s
        The process is ended after so long; what it had found by then is kept.
    """

    name: str
    module: str
    shows: str
    limit_s: float


PARTS = (
    Part(
        name="machine",
        module="machine",
        shows="GPU, driver, versions of torch and of what PACE needs",
        limit_s=40,
    ),
    Part(
        name="cuda_tests",
        module="cuda_tests",
        shows="the tests marked cuda: two ranks on one GPU over Gloo, one over NCCL, no operation that waits",
        limit_s=130,
    ),
    Part(
        name="captures",
        module="captures",
        shows="captured profiles of real models: predicted against plain iteration",
        limit_s=100,
    ),
    Part(
        name="kineto",
        module="captures",
        shows="traces of the same runs through the Kineto importer",
        limit_s=40,
    ),
    Part(
        name="training",
        module="two_ranks",
        shows="two ranks on one GPU over Gloo through a limited link: DDP against PACE",
        limit_s=140,
    ),
    Part(
        name="nccl",
        module="two_ranks",
        shows="two ranks on one GPU over NCCL, as two hosts, through a limited link: DDP against PACE",
        limit_s=80,
    ),
    Part(
        name="overhead", module="one_rank", shows="what the runtime costs where nothing is sent", limit_s=40
    ),
    Part(name="memory", module="one_rank", shows="peak memory of plain training, DDP and PACE", limit_s=30),
)
TOTAL_S = 590.0
"""All parts together; what is left after their limits is for starting and ending processes."""


GRACE_S = 4.0
"""Between SIGTERM, at which network namespaces are taken away again, and SIGKILL."""
TAIL_CHARACTERS = 3000


def run_part(
    part: Part, *, work: Path, dry: bool, limit_s: float, environment: dict[str, str]
) -> dict[str, Any]:
    """Run one part for at most `limit_s` and return its findings, status and seconds.

    Status is "passed", "failed" or "timed out"; of a part that did not pass, the end of its output is kept.
    """
    result, log = work / f"{part.name}.json", work / f"{part.name}.log"
    command = [
        sys.executable,
        "-m",
        "benchmarks.studies.gpu.part",
        part.module,
        part.name,
        str(result),
        str(work),
    ]
    if dry:
        command.append("--dry-run")
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    found: dict[str, Any] = {"facts": {}, "rows": [], "failures": []}
    if result.exists():
        found = json.loads(result.read_text())
    if code is None:
        found["failures"].append(f"ended after {limit_s:.0f} s, its limit; what it had found is kept")
    elif code != 0:
        found["failures"].append(f"the process ended with {code}")
    status = "timed out" if code is None else "failed" if found["failures"] else "passed"
    found |= {"status": status, "seconds": time.monotonic() - started, "shows": part.shows}
    if status != "passed":
        found["output"] = log.read_text(errors="replace")[-TAIL_CHARACTERS:]
    return found


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End what is left of the process's group."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
