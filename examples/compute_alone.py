"""Times what an iteration computes, with nothing sent, while all workers compute.

A machine's speed changes from one minute to the next. Timed right before and after a training, this says for
which speed its iteration time holds.
"""

import time
from statistics import median

import torch
from cnn import Batches, build_model
from torch.nn.functional import cross_entropy
from workers import slowest

ITERATIONS = 6


class ComputeAlone:
    """Trains a model of its own, without any wrapper."""

    def __init__(self, backend: str, rank: int, batch_size: int) -> None:
        self._backend = backend
        self._batches = Batches(rank, batch_size)
        self._model = build_model()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)
        self._durations_s: list[float] = []

    def measure(self) -> None:
        """Time some iterations, which all workers begin together; the first one does not count."""
        slowest(self._backend, 0.0)
        durations_s = []
        for _ in range(ITERATIONS + 1):
            started_s = time.perf_counter()
            images, labels = self._batches.next()
            self._optimizer.zero_grad()
            cross_entropy(self._model(images), labels).backward()
            self._optimizer.step()
            durations_s.append(slowest(self._backend, time.perf_counter() - started_s))
        self._durations_s += durations_s[1:]

    @property
    def iteration_s(self) -> float:
        """How long an iteration takes the slowest worker, in seconds: the median of all that were timed."""
        return median(self._durations_s)
