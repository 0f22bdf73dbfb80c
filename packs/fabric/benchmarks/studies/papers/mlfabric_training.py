"""MLfabric's Fig. 7: a neural network and LDA, trained with delays of simulated runs; prints Markdown.

    python -m benchmarks papers.mlfabric_training [--seconds 40] [--seeds 3] [--steps 0.01 0.02 0.03]

A simulated run at C1-N1 says which update is committed when, and from which version it was computed. Training
follows that log: every gradient and every Gibbs sweep is computed for real, from the model of that version. A
dropped update is lost; the worker of LDA that made it goes back to its earlier topics.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from statistics import mean
from typing import Protocol

import numba
import numpy as np

from benchmarks.harness.conditions import study_parser
from benchmarks.studies.papers.mlfabric import COMPUTE, LDA, NETWORKS, RATES, table
from pace.solver.arrays import FloatArray, IntArray
from pace_fabric.documents.scenario import FabricScenario, RedrawnRates, Straggling
from pace_fabric.simulation import simulate_fabric

WORKERS = 30
# No update is ever as late as that.
UNBOUNDED = 10**6
BOUNDS = (30, 45, 60, UNBOUNDED)
POINTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One worker's update: when it is committed, and the version that it was computed from."""

    worker: int
    from_version: int
    at_s: float


class Learner(Protocol):
    """What is trained: commits updates computed from earlier versions of its model."""

    def commit(self, worker: int, from_version: int) -> None:
        """Compute an update from a version and apply it to the newest."""

    def score(self) -> float:
        """Return how good the newest version is; larger is better."""


class Network:
    """A network with one hidden layer on the 8 x 8 digits of scikit-learn, by SGD with momentum.

    Parameters
    ----------
    step
        Learning rate of one worker's update.
    """

    def __init__(self, seed: int, step: float, momentum: float = 0.5, hidden: int = 32) -> None:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # it has no types

        images, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(images))
        images, labels = images[order] / 16, labels[order]
        self._held = (images[-400:], labels[-400:])
        self._images, self._labels = images[:-400], labels[:-400]
        self._random = np.random.default_rng(seed)
        self._step, self._momentum = step, momentum
        first = self._random.normal(size=(64, hidden)) / 8
        second = self._random.normal(size=(hidden, 10)) / np.sqrt(hidden)
        self._shape = first.shape, second.shape
        self._models = [np.concatenate([first.ravel(), second.ravel()])]
        self._history = np.zeros_like(self._models[0])

    def _layers(self, model: FloatArray) -> tuple[FloatArray, FloatArray]:
        cut = int(np.prod(self._shape[0]))
        return model[:cut].reshape(self._shape[0]), model[cut:].reshape(self._shape[1])

    def gradient(self, model: FloatArray, rows: IntArray) -> FloatArray:
        """Return the gradient of the mean cross entropy over these images."""
        first, second = self._layers(model)
        images = self._images[rows]
        hidden = np.maximum(images @ first, 0)
        scores = hidden @ second
        chance = np.exp(scores - scores.max(axis=1, keepdims=True))
        chance /= chance.sum(axis=1, keepdims=True)
        chance[np.arange(len(rows)), self._labels[rows]] -= 1
        chance /= len(rows)
        back = (chance @ second.T) * (hidden > 0)
        return np.concatenate([(images.T @ back).ravel(), (hidden.T @ chance).ravel()])

    def commit(self, worker: int, from_version: int) -> None:
        """Compute a gradient over 32 images, and take a step with momentum."""
        del worker  # all draw from all images
        rows = self._random.integers(0, len(self._images), 32)
        old = self._models[min(from_version, len(self._models) - 1)]
        self._history = self._momentum * self._history - self._step * self.gradient(old, rows)
        self._models.append(self._models[-1] + self._history)

    def score(self) -> float:
        """Return the share of 400 held-out images that are recognized."""
        first, second = self._layers(self._models[-1])
        images, labels = self._held
        found = (np.maximum(images @ first, 0) @ second).argmax(axis=1)
        return float((found == labels).mean())


class TopicModel:
    """LDA by collapsed Gibbs sampling on documents that are drawn from ten topics.

    The model has how often each topic has each word. An update is the change by one sweep over the documents
    of a worker.
    """

    TOPICS, WORDS, DOCUMENTS, LENGTH = 10, 200, 20, 60
    ALPHA, BETA = 0.1, 0.05

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(0)
        topics = random.dirichlet(np.full(self.WORDS, 0.05), self.TOPICS)
        shape = (WORKERS, self.DOCUMENTS)
        mixtures = random.dirichlet(np.full(self.TOPICS, self.ALPHA), shape)
        self._words = np.empty((*shape, self.LENGTH), dtype=np.int64)
        for worker, document in np.ndindex(*shape):
            of_word = mixtures[worker, document] @ topics
            self._words[worker, document] = random.choice(self.WORDS, self.LENGTH, p=of_word / of_word.sum())
        self._random = np.random.default_rng(seed)
        self._topics = self._random.integers(0, self.TOPICS, self._words.shape)
        counts = np.zeros((self.TOPICS, self.WORDS))
        np.add.at(counts, (self._topics.ravel(), self._words.ravel()), 1)
        self._models = [counts]

    def commit(self, worker: int, from_version: int) -> None:
        """Sweep over the worker's documents, starting from a version, and add what changed."""
        old = self._models[min(from_version, len(self._models) - 1)]
        drawn = self._random.random(self._words[worker].shape)
        before = self._topics[worker]
        after = before.copy()
        sweep(self._words[worker], after, old.copy(), drawn, self.ALPHA, self.BETA)
        newest = self._models[-1].copy()
        words = self._words[worker].ravel()
        np.add.at(newest, (after.ravel(), words), 1)
        np.add.at(newest, (before.ravel(), words), -1)
        self._topics[worker] = after
        self._models.append(newest)

    def score(self) -> float:
        """Return the mean log-likelihood of a word of all documents."""
        of_topic = self._models[-1] + self.BETA
        of_topic = of_topic / of_topic.sum(axis=1, keepdims=True)
        shares = (self._topics[..., None] == np.arange(self.TOPICS)).sum(axis=2) + self.ALPHA
        shares = shares / shares.sum(axis=2, keepdims=True)
        chance = np.einsum("wdk,kwdl->wdl", shares, of_topic[:, self._words])
        return float(np.log(chance).mean())


@numba.njit(cache=True)
def sweep(
    words: IntArray, topics: IntArray, counts: FloatArray, drawn: FloatArray, alpha: float, beta: float
) -> None:
    """Draw every word's topic anew, given all others; `counts` and `topics` change with each draw.

    A stale model may lack what the worker's own topics stand for: a count below 0 counts as 0.
    """
    num_topics, num_words = counts.shape
    totals = counts.sum(axis=1)
    chance = np.empty(num_topics)
    for document in range(words.shape[0]):
        shares = np.zeros(num_topics)
        for place in range(words.shape[1]):
            shares[topics[document, place]] += 1
        for place in range(words.shape[1]):
            word, topic = words[document, place], topics[document, place]
            shares[topic] -= 1
            counts[topic, word] -= 1
            totals[topic] -= 1
            total = 0.0
            for each in range(num_topics):
                of_topic = (max(counts[each, word], 0.0) + beta) / (max(totals[each], 0.0) + num_words * beta)
                total += (shares[each] + alpha) * of_topic
                chance[each] = total
            topic = min(int(np.searchsorted(chance, drawn[document, place] * total)), num_topics - 1)
            topics[document, place] = topic
            shares[topic] += 1
            counts[topic, word] += 1
            totals[topic] += 1


@cache
def asynchronous(seconds: float, seed: int, bound: int, **knobs: float) -> tuple[list[Commit], float]:
    """Return the commits of a simulated run under a delay bound, and the share of updates that it dropped."""
    run = simulate_fabric(_scenario(seconds, seed, delay_bound=bound, pull="at-once", **knobs), "mlfabric-a")
    commits = [Commit(worker=one.worker, from_version=one.from_version, at_s=one.at_s) for one in run.commits]
    return commits, run.drop_rate


@cache
def synchronous(seconds: float, seed: int, **knobs: float) -> tuple[list[Commit], float]:
    """Return the commits of a ring: all workers' updates of a round at once, from the same version."""
    run = simulate_fabric(_scenario(seconds, seed, **knobs), "ring")
    return [
        Commit(worker=worker, from_version=number * WORKERS, at_s=end)
        for number, end in enumerate(run.rounds_s)
        for worker in range(WORKERS)
    ], 0.0


def _scenario(seconds: float, seed: int, **knobs: object) -> FabricScenario:
    percent, slowdown = COMPUTE["C1"]
    return FabricScenario.model_validate(
        {
            "links": RedrawnRates(bytes_per_s=RATES, shares=NETWORKS["N1"]),
            "straggling": Straggling(percent=percent, slowdown=slowdown),
            "duration_s": seconds,
            "seed": seed,
            **knobs,
        }
    )


def scores(learner: Learner, commits: Sequence[Commit], moments_s: Sequence[float]) -> list[float]:
    """Return the score at these moments of training along a commit log."""
    found: list[float] = []
    waiting = list(moments_s)
    for commit in sorted(commits, key=lambda one: one.at_s):
        while waiting and commit.at_s > waiting[0]:
            found.append(learner.score())
            waiting.pop(0)
        learner.commit(commit.worker, commit.from_version)
    return found + [learner.score()] * len(waiting)


def print_scores(
    name: str, make: Callable[[int], Learner], given: argparse.Namespace, **knobs: float
) -> None:
    """Print the score over time under each bound, and of the ring."""
    moments = [given.seconds * (number + 1) / POINTS for number in range(POINTS)]
    rows: list[tuple[object, ...]] = []
    logs: dict[str, Callable[[int], tuple[list[Commit], float]]] = {
        ("none" if bound == UNBOUNDED else str(bound)): partial(_under, bound, given.seconds, knobs)
        for bound in BOUNDS
    }
    logs["ring"] = lambda seed: synchronous(given.seconds, seed, **knobs)
    for bound, log in logs.items():
        curves, sent, dropped = [], [], []
        for seed in range(given.seeds):
            commits, share = log(seed)
            curves.append(scores(make(seed), commits, moments))
            sent.append(len(commits))
            dropped.append(share)
        points = [f"{mean(each):.3f}" for each in zip(*curves, strict=True)]
        rows.append((bound, round(mean(sent)), f"{mean(dropped) * 100:.0f} %", *points))
    print(f"## {name}\n")
    table(("delay bound", "commits", "dropped", *(f"{moment:g} s" for moment in moments)), rows)


def _under(bound: int, seconds: float, knobs: dict[str, float], seed: int) -> tuple[list[Commit], float]:
    return asynchronous(seconds, seed, bound, **knobs)


def main() -> None:
    """Print both tables."""
    parser = study_parser(__doc__)
    parser.add_number("--seconds", 40.0, "duration of a simulated run in seconds")
    parser.add_number("--seeds", 3, "number of runs of each row, with different seeds")
    parser.add_argument(
        "--steps",
        nargs="+",
        type=float,
        default=[0.01, 0.02, 0.03],
        help="learning rates of the neural network (default: %(default)s)",
    )
    given = parser.parse_args()
    for step in given.steps:
        name = f"Accuracy of a network on digits, learning rate {step:g}"
        print_scores(name, partial(Network, step=step), given)
    print_scores("Log-likelihood of a word, LDA", TopicModel, given, update_bytes=LDA, compute_s=0.18)
