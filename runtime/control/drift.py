"""Notices that iterations have become slower or faster than when the plan was put in force.

Ranks record alone and compare together: what counts is the slowest rank, so all of them draw the same
conclusion from the same numbers.
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
    compute_s
        What an iteration takes without the time spent waiting for communication.
    """

    iteration_s: float
    compute_s: float


class Drift:
    """Watches the iterations under one plan.

    Parameters
    ----------
    predicted_s
        What the schedule promised, where that is worth comparing with: in a job that did not make the
        profile itself. None otherwise.

    Attributes
    ----------
    reference
        The slowest rank's first full window under the plan; None before its end.
    latest
        The slowest rank's medians when the ranks compared last; None where some window was not full then.
    ratio
        The latest window against the reference (or, once, the reference against the prediction):
        the iteration's ratio, or what the change in compute alone makes of an iteration, whichever is
        farther from 1. None before there is anything to compare.
    against
        What `ratio` compares with.
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
        """Record an iteration and the time in it that was spent waiting for communication."""
        self._latest.append(Typical(iteration_s, max(iteration_s - waited_s, 0.0)))

    def restart_window(self) -> None:
        """Begin a new window: something else ran in between. The reference stays."""
        self._latest.clear()

    def typical(self) -> Typical | None:
        """Medians of this rank; None until the window is full."""
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
        # Compute that hides behind communication counts as a part of the iteration, so that the noise of
        # a short compute beside a long wait is no drift.
        hidden = 1 + (slowest.compute_s - before.compute_s) / before.iteration_s
        self._judge([slowest.iteration_s / before.iteration_s, hidden], self._settings.drift_ratio)

    def _judge(self, ratios: list[float], limit: float) -> None:
        distances = [abs(math.log(ratio)) if ratio > 0 else math.inf for ratio in ratios]
        farthest = max(range(len(ratios)), key=distances.__getitem__)
        self.ratio = ratios[farthest]
        self.drifted = distances[farthest] > math.log(limit)
