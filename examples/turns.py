"""Two jobs that train in turns, so that a machine whose speed changes every minute favors neither of them."""

import atexit
import fcntl
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

import torch
from cnn import Batches, build_model
from torch.nn.functional import cross_entropy
from workers import slowest

STEPS_IN_TURN = 5
COMPUTE_ITERATIONS = 2
# A job that waits for its turn has taken it after this time.
HAND_OVER_S = 0.2
POLL_S = 0.05


class Turns:
    """One worker's turns; both jobs share `file`.

    Each turn begins with a few iterations of a model of its own, without any wrapper. They say how fast the
    machine computes at that time, with nothing sent. Meanwhile the other job's workers are stopped (SIGSTOP):
    Horovod's threads keep a processor busy even while they wait.
    """

    def __init__(self, file: Path, backend: str, rank: int, batch_size: int) -> None:
        self._path, self._backend = file, backend
        self._file = file.open("w") if rank == 0 else None
        self._batches = Batches(rank, batch_size)
        self._model = build_model()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)
        self._durations_s: list[float] = []
        # A job is known by its first worker's process.
        self._job = int(slowest(backend, os.getpid() if rank == 0 else 0.0))
        self._mark = file.with_name(f"{file.name}.{self._job}.{os.getpid()}")
        self._mark.touch()
        atexit.register(self._mark.unlink, missing_ok=True)
        while rank == 0 and not self._others():
            time.sleep(POLL_S)

    def begin(self) -> None:
        """Wait for this job's turn, on all workers; nothing may be under way."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        slowest(self._backend, 0.0)
        durations_s = []
        for _ in range(1 + COMPUTE_ITERATIONS):
            started_s = time.perf_counter()
            images, labels = self._batches.next()
            self._optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(self._model(images), labels))
            self._optimizer.step()
            durations_s.append(slowest(self._backend, time.perf_counter() - started_s))
            self._send_others(signal.SIGSTOP)  # after the first iteration, they wait for their turn
        self._durations_s += durations_s[1:]

    def end(self) -> None:
        """Let the other job train; nothing may be under way."""
        slowest(self._backend, 0.0)
        self._send_others(signal.SIGCONT)
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            time.sleep(HAND_OVER_S)

    def leave(self) -> None:
        """Let the other job train from now on; nothing may be under way."""
        self._mark.unlink()
        self.end()

    @property
    def compute_alone_s(self) -> float:
        """How long an iteration computes on the slowest worker, in seconds: the median of those timed."""
        return median(self._durations_s)

    def _others(self) -> list[int]:
        own = f".{self._job}."
        marks = self._path.parent.glob(f"{self._path.name}.*.*")
        return [int(mark.suffix[1:]) for mark in marks if own not in mark.name]

    def _send_others(self, sent: signal.Signals) -> None:
        if self._file is not None:
            send(self._others(), sent)


def resume(file: Path) -> None:
    """Let all workers that take turns by this file go on: a stopped process cannot end on request."""
    marks = list(file.parent.glob(f"{file.name}.*.*"))
    send([int(mark.suffix[1:]) for mark in marks], signal.SIGCONT)
    for mark in marks:
        mark.unlink(missing_ok=True)


def send(processes: list[int], sent: signal.Signals) -> None:
    """Send a signal to processes; some may have ended."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, sent)
