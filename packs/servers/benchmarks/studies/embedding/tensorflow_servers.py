"""TensorFlow's parameter server: its processes are started here, and run where TensorFlow is installed."""

import argparse
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np
import torch

from benchmarks.studies.embedding.workload import WARM_UP, WIDTH, Turn, draw_batches, free_ports, turn_of

PROGRAM = Path(__file__).with_name("tensorflow_program.py")
# The machine may be busy.
_WITHIN_S = 600.0


def run_tensorflow(options: argparse.Namespace) -> Turn:
    """Train with the interpreter `options.tensorflow`; updates are applied as they arrive.

    Raises
    ------
    RuntimeError
        When a process ends early or is late; the message holds what it said last.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        places = [f"127.0.0.1:{port}" for port in free_ports(1 + options.workers)]
        common = ["--server", places[0], "--workers", *places[1:], "--model", options.model]
        common += ["--rows", f"{options.rows // options.tables}", "--width", f"{WIDTH}"]
        server = stack.enter_context(_Process(options.tensorflow, "ps", 0, common))
        workers = []
        for rank in range(options.workers):
            batches = Path(folder) / f"{rank}.npz"
            write_batches(batches, rank, options)
            own = [*common, "--batches", str(batches), "--warm-up", f"{WARM_UP}"]
            workers.append(stack.enter_context(_Process(options.tensorflow, "worker", rank, own)))
        for worker in workers:
            worker.expect("ready")
        before_s = server.processor_s()
        for worker in workers:
            worker.go_on()
        told = [json.loads(worker.line()) for worker in workers]
        processor_s = server.processor_s() - before_s + sum(each["processor_s"] for each in told)
        return turn_of(options, [each["seconds"] for each in told], processor_s)


def write_batches(path: Path, rank: int, options: argparse.Namespace) -> None:
    """Write a worker's batches, each array with all steps in its first dimension."""
    drawn = list(draw_batches(rank, options))
    np.savez(
        path,
        keys=torch.stack([batch.keys for batch in drawn]).numpy(),
        dense=torch.stack([batch.dense for batch in drawn]).numpy(),
        clicks=torch.stack([batch.clicks for batch in drawn]).numpy(),
    )


class _Process:
    """A process of the job; it ends with the context."""

    def __init__(self, python: Path, job: str, task: int, words: Sequence[str]) -> None:
        self._name = f"TensorFlow's {job} {task}"
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self._process = subprocess.Popen(
            [str(python), str(PROGRAM), "--job", job, "--task", str(task), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
        )

    def __enter__(self) -> "_Process":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                pipe.close()

    def line(self) -> str:
        """Wait for a line that the process prints."""
        assert self._process.stdout is not None
        late = threading.Timer(_WITHIN_S, self._process.kill)
        late.start()
        try:
            said = self._process.stdout.readline()
        finally:
            late.cancel()
        if not said:
            self._errors.seek(0)
            last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
            raise RuntimeError(f"{self._name} ended with {self._process.wait()}: {' '.join(last)}")
        return said.strip()

    def expect(self, line: str) -> None:
        """Wait for this line."""
        said = self.line()
        if said != line:
            raise RuntimeError(f"{self._name} said {said!r}, not {line!r}")

    def go_on(self) -> None:
        """Let a process go on that waits."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def processor_s(self) -> float:
        """Return the processor time that the process has taken."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        user, system = fields[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
