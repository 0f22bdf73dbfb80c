"""Transfers that share links fairly, as TCP flows roughly do: max-min fair rates, event by event."""

from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace_fabric.simulation.draws import rates_at
from pace_fabric.solver.capacity import Capacities


@dataclass(frozen=True, slots=True)
class Arrival:
    """A transfer that has ended, with what was said of it when it began."""

    at_s: float
    source: int
    target: int
    label: tuple[str, int, int]


class FairNetwork:
    """A network whose transfers share every link fairly.

    Parameters
    ----------
    links
        Rates over the whole run.
    """

    def __init__(self, links: Capacities) -> None:
        self.links = links
        self.now = 0.0
        used = np.arange(links.times.shape[1]) < links.counts[:, None]
        self._changes = np.unique(links.times[used])
        self._source = np.empty(0, dtype=np.int64)
        self._target = np.empty(0, dtype=np.int64)
        self._left = np.empty(0)
        self._labels: list[tuple[str, int, int]] = []
        self._rates = np.empty(0)
        self._stale = True

    def start(self, source: int, target: int, size_bytes: float, label: tuple[str, int, int]) -> None:
        """Begin a transfer now."""
        self._source = np.append(self._source, source)
        self._target = np.append(self._target, target)
        self._left = np.append(self._left, size_bytes)
        self._labels.append(label)
        self._stale = True

    def next_end_s(self) -> float:
        """Return when the next transfer ends if nothing else begins; infinity without any."""
        if not self._labels:
            return np.inf
        at = self.now
        left = self._left.copy()
        while True:
            rates = self._rates_now() if at == self.now else self._fair(rates_at(self.links, at))
            change = self._next_change(at)
            with np.errstate(divide="ignore"):
                first = float((left / rates).min())
            if at + first <= change:
                return at + first
            if change == np.inf:
                return np.inf
            left = left - rates * (change - at)
            at = change

    def advance(self, to_s: float) -> list[Arrival]:
        """Let time pass until `to_s`; return the transfers that end exactly then or before."""
        while self._labels and self.now < to_s:
            until = min(to_s, self._next_change(self.now))
            self._left = self._left - self._rates_now() * (until - self.now)
            if until == self._next_change(self.now):
                self._stale = True
            self.now = until
        self.now = to_s
        done = (
            self._left <= 1e-6 * np.maximum(self._rates_now(), 1.0)
            if self._labels
            else np.empty(0, dtype=bool)
        )
        arrivals = [
            Arrival(to_s, int(self._source[i]), int(self._target[i]), self._labels[i])
            for i in np.flatnonzero(done).tolist()
        ]
        if arrivals:
            self._source, self._target = self._source[~done], self._target[~done]
            self._left = self._left[~done]
            self._labels = [label for label, ended in zip(self._labels, done, strict=True) if not ended]
            self._stale = True
        return arrivals

    def _next_change(self, at: float) -> float:
        place = int(np.searchsorted(self._changes, at, side="right"))
        return float(self._changes[place]) if place < len(self._changes) else np.inf

    def _rates_now(self) -> FloatArray:
        if self._stale:
            self._rates = self._fair(rates_at(self.links, self.now))
            self._stale = False
        return self._rates

    def _fair(self, capacity: FloatArray) -> FloatArray:
        return fair_rates(self._source, self._target, capacity)


def fair_rates(source: IntArray, target: IntArray, capacity: FloatArray) -> FloatArray:
    """Return max-min fair rates of transfers, by filling all up together until a link is full."""
    from pace.solver.kernels.max_min import share

    rates, links, users = np.zeros(len(source)), len(capacity), np.empty(len(capacity), dtype=np.int64)
    up, down, alike = 2 * source, 2 * target + 1, np.ones(len(source))
    share(up, down, len(source), capacity, alike, np.empty(links), users, np.empty(links), rates)
    return rates
