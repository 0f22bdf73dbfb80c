"""Jobs that train in turns, so that a machine whose speed changes every minute favors none of them."""

import fcntl
import time
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


class Turns:
    """One worker's turns; all jobs that share `file` take turns.

    Each turn begins with a few iterations of a model of its own, without any wrapper. They say how fast the
    machine computes at that time, with nothing sent.
    """

    def __init__(self, file: Path, backend: str, rank: int, batch_size: int) -> None:
        self._file = file.open("w") if rank == 0 else None
        self._backend = backend
        self._batches = Batches(rank, batch_size)
        self._model = build_model()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)
        self._durations_s: list[float] = []

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
        self._durations_s += durations_s[1:]

    def end(self) -> None:
        """Let the other job train; nothing may be under way."""
        slowest(self._backend, 0.0)
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            time.sleep(HAND_OVER_S)

    @property
    def compute_alone_s(self) -> float:
        """How long an iteration computes on the slowest worker, in seconds: the median of those timed."""
        return median(self._durations_s)
