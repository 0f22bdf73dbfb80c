"""Runs a part in a process group of its own, ends it when its time is up and says how it ended."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.studies.gpu.parts import Part

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
    command = [sys.executable, "-m", "benchmarks.studies.gpu.part", part.name, str(result), str(work)]
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
