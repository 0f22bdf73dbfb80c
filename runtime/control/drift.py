"""Notices that iterations have become slower or faster than at the start of the current plan.

Each rank records its own iterations. All ranks compare the slowest rank's, so they reach the same conclusion.
"""

import collections
import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

from pace.runtime.options import Replanning


class Typical(NamedTuple):
    """Medians over the latest iterations of one rank, or of the slowest, in seconds.

    Attributes
    ----------
    iteration_s
        Median time of an iteration.
    compute_s
        Median time of an iteration without waits for communication.
    """

    iteration_s: float
    compute_s: float


class Drift:
    """Watches the iterations under one plan.

    Parameters
    ----------
    predicted_s
        The iteration time that the schedule predicts, in seconds; None in a job that made the profile itself.

    Attributes
    ----------
    reference
        The slowest rank's first full window under the plan; None before its end.
    latest
        The slowest rank's medians at the last comparison; None if a window was not full then.
    ratio
        The latest window relative to the reference (or, once, the reference relative to the prediction). It
        is the ratio of iteration times, or that due to the change in compute alone, whichever is farther from
        1. None before the first comparison.
    against
        What `ratio` is relative to.
    drifted
        Whether `ratio` is beyond the limit.
    """

    def __init__(self, settings: Replanning, predicted_s: float | None) -> None:
        self._settings = settings
        self._predicted_s = predicted_s
        self._latest: collections.deque[Typical] = collections.deque(maxlen=settings.drift_iterations)
        self.reference: Typical | None = None
        self.latest: Typical | None = None
        self.ratio: float | None = None
        self.against: Literal["start", "prediction"] = "start"
        self.drifted = False

    def record(self, iteration_s: float, waited_s: float) -> None:
        """Record the seconds of an iteration, and of its waits for communication."""
        self._latest.append(Typical(iteration_s, max(iteration_s - waited_s, 0.0)))

    def restart_window(self) -> None:
        """Begin a new window, because another plan ran in between. The reference stays."""
        self._latest.clear()

    def typical(self) -> Typical | None:
        """Return the medians of this rank; None until the window is full."""
        if len(self._latest) < self._settings.drift_iterations:
            return None
        return Typical(*(statistics.median(column) for column in zip(*self._latest, strict=True)))

    def compare(self, medians: Sequence[Typical | None]) -> None:
        """Compare the medians of all ranks with the reference; the first full window becomes it."""
        full = [each for each in medians if each is not None]
        self.latest = None
        if len(full) < len(medians):
            return
        slowest = Typical(*(max(column) for column in zip(*full, strict=True)))
        self.latest = slowest
        if self.reference is None:
            self.reference = slowest
            self.restart_window()
            if self._predicted_s is not None:
                self._judge([slowest.iteration_s / self._predicted_s], self._settings.stale_ratio)
                self.against = "prediction" if self.drifted else "start"
            return
        if self.against == "prediction":
            return
        before = self.reference
        # The change in compute counts relative to the iteration, so that noise in short compute beside long
        # waits is not a drift.
        hidden = 1 + (slowest.compute_s - before.compute_s) / before.iteration_s
        self._judge([slowest.iteration_s / before.iteration_s, hidden], self._settings.drift_ratio)

    def _judge(self, ratios: list[float], limit: float) -> None:
        distances = [abs(math.log(ratio)) if ratio > 0 else math.inf for ratio in ratios]
        farthest = max(range(len(ratios)), key=distances.__getitem__)
        self.ratio = ratios[farthest]
        self.drifted = distances[farthest] > math.log(limit)
