"""Runs a benchmark as its users do, and ends all that it has started, also if a test's time is up."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_benchmark(arguments: Sequence[str], *, timeout_s: float) -> str:
    """Run ``python -m benchmarks`` with arguments.

    Returns
    -------
    output
        What it wrote to standard output.

    Raises
    ------
    AssertionError
        If it fails, with what it wrote to standard error.
    subprocess.TimeoutExpired
        If it takes longer.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0, errors
    return output
