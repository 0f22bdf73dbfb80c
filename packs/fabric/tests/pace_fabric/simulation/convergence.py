"""What delays do to learning: the commit log of a simulated run replayed on small convex problems.

Only the order of commits and the versions that updates were computed from matter here, so any commit log
will do, a synthetic one too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pace.solver.arrays import FloatArray
from pace_fabric.simulation.records import CommitRecord


class ConvexProblem(Protocol):
    """A convex loss with stochastic gradients; the n-th gradient has the same noise in every replay."""

    def start(self) -> FloatArray:
        """Return the first model."""

    def gradient(self, model: FloatArray, number: int) -> FloatArray:
        """Return the stochastic gradient of the `number`-th update at a model."""

    def loss(self, model: FloatArray) -> float:
        """Return the loss above the least one."""


class NoisyQuadratic:
    """Half of w' H w with eigenvalues from 0.05 to 1, and Gaussian noise on its gradient."""

    def __init__(self, dimension: int = 20, noise: float = 0.3, seed: int = 0) -> None:
        self.curvature = np.linspace(0.05, 1.0, dimension)
        self._noise = noise
        self._seed = seed

    def start(self) -> FloatArray:
        """Return the first model."""
        return np.full(len(self.curvature), 2.0)

    def gradient(self, model: FloatArray, number: int) -> FloatArray:
        """Return the gradient with the `number`-th noise."""
        noise = np.random.default_rng([self._seed, number]).normal(size=len(model))
        drawn: FloatArray = self.curvature * model + self._noise * noise
        return drawn

    def loss(self, model: FloatArray) -> float:
        """Return the loss; the least is 0."""
        return float(0.5 * (self.curvature * model**2).sum())


class LogisticRegression:
    """Two classes of points around two centers; every update is computed from a batch of 32."""

    def __init__(self, samples: int = 2000, features: int = 20, batch: int = 32, seed: int = 0) -> None:
        random = np.random.default_rng([seed, 0])
        self._labels = random.integers(0, 2, samples)
        center = random.normal(size=features) / np.sqrt(features)
        self._points = random.normal(size=(samples, features)) + np.outer(2 * self._labels - 1, center)
        self._batch = batch
        self._seed = seed

    def start(self) -> FloatArray:
        """Return the first model."""
        return np.zeros(self._points.shape[1])

    def gradient(self, model: FloatArray, number: int) -> FloatArray:
        """Return the gradient over the `number`-th batch."""
        rows = np.random.default_rng([self._seed, 1, number]).integers(0, len(self._points), self._batch)
        return self._gradient(model, rows)

    def _gradient(
        self, model: FloatArray, rows: "FloatArray | np.ndarray[tuple[int], np.dtype[np.int64]]"
    ) -> FloatArray:
        points = self._points[rows]
        chance = 1 / (1 + np.exp(-points @ model))
        slope: FloatArray = points.T @ (chance - self._labels[rows]) / len(points) + 1e-3 * model
        return slope

    def loss(self, model: FloatArray) -> float:
        """Return the mean logistic loss over all points."""
        margin = (2 * self._labels - 1) * (self._points @ model)
        return float(np.logaddexp(0.0, -margin).mean() + 0.5e-3 * model @ model)

    def accuracy(self, model: FloatArray) -> float:
        """Return the share of points on the right side."""
        return float(((self._points @ model > 0) == self._labels).mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """A replayed run: the model, and the loss at chosen versions."""

    model: FloatArray
    versions: tuple[int, ...]
    losses: tuple[float, ...]


def replay(
    commits: Sequence[CommitRecord],
    problem: ConvexProblem,
    step: Callable[[int], float],
    *,
    momentum: float = 0.0,
    every: int = 50,
) -> Learned:
    """Commit the log's updates in order, each computed from the version that the log says.

    Parameters
    ----------
    step
        Step size at a version.
    momentum
        gamma of w_{t+1} = w_t + u + gamma (w_t - w_{t-1}).
    every
        After how many versions the loss is recorded.
    """
    models = [problem.start()]
    history = np.zeros_like(models[0])
    versions, losses = [0], [problem.loss(models[0])]
    number = 0
    for commit in commits:
        for _ in range(commit.num_updates):
            from_model = models[min(commit.from_version, len(models) - 1)]
            update = -commit.weight * step(len(models)) * problem.gradient(from_model, number)
            history = update + momentum * history
            models.append(models[-1] + history)
            number += 1
            if number % every == 0:
                versions.append(number)
                losses.append(problem.loss(models[-1]))
    return Learned(model=models[-1], versions=tuple(versions), losses=tuple(losses))


def delayed_log(num_commits: int, mean: int, spread: int, seed: int) -> list[CommitRecord]:
    """Return a commit log whose delays are uniform in [mean - spread, mean + spread]."""
    random = np.random.default_rng([seed, 7])
    log = []
    for version in range(num_commits):
        delay = int(random.integers(mean - spread, mean + spread + 1))
        log.append(
            CommitRecord(
                worker=version,
                version=version,
                from_version=max(0, version - delay),
                num_updates=1,
                planned_s=float(version),
                at_s=float(version),
            )
        )
    return log
