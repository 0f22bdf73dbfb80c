"""Runs a benchmark as its users do, and ends all that it has started, also if a test's time is up.

It and the programs that it starts are forks of a process that has loaded torch.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.preloaded import ROOT, Programs


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
    with tempfile.TemporaryDirectory(prefix="pace-") as folder, Programs(Path(folder, "run")) as programs:
        process = subprocess.Popen(
            [programs.python, "-m", "benchmarks", *arguments],
            cwd=ROOT,
            env=os.environ | programs.environment,
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
