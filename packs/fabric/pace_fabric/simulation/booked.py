"""The network as it is and as the scheduler sees it: one to book on, one to plan on.

The scheduler knows rates as they were a monitor's lag ago, takes them to stay, and knows how many bytes of
each transfer under way are still to come.
"""

from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray
from pace_fabric.simulation.draws import rates_at
from pace_fabric.solver.capacity import Capacities


@dataclass(frozen=True, slots=True)
class Booked:
    """A transfer that was given bandwidth on the real network."""

    source: int
    target: int
    pieces: FloatArray
    end_s: float

    def left_bytes(self, at_s: float) -> float:
        """Return how much is still to come."""
        spans = np.clip(self.pieces[:, 1] - np.maximum(self.pieces[:, 0], at_s), 0.0, None)
        return float((spans * self.pieces[:, 2]).sum())


class BookedNetwork:
    """Transfers in order of priority on links whose real rates are known only here."""

    def __init__(self, links: Capacities, lag_s: float) -> None:
        self._links = links
        self._left = links.copy()
        self._lag_s = lag_s
        self._under_way: list[Booked] = []

    def send(self, source: int, target: int, size_bytes: float, start_s: float) -> float:
        """Send with all that earlier transfers leave; return when the last byte arrives."""
        booked = self._left.reserve(source, target, size_bytes, start_s)
        if len(booked.pieces):
            self._under_way.append(Booked(source, target, booked.pieces, booked.end_s))
        return booked.end_s

    def seen(self, now: float) -> Capacities:
        """Return what the scheduler takes to be left, in absolute time from `now` on."""
        rates = rates_at(self._links, now - self._lag_s)
        view = Capacities.constant(rates[0::2], rates[1::2])
        self._under_way = [booked for booked in self._under_way if booked.end_s > now]
        for booked in self._under_way:
            left = booked.left_bytes(now)
            if left > 0:
                view.reserve(booked.source, booked.target, left, max(now, float(booked.pieces[0, 0])))
        self._trim(now)
        return view

    def busy_until(self, view: Capacities, link: int, now: float) -> float:
        """Return from when on a link is seen to be free of what is under way."""
        steps = view.steps(link)
        return max(now, steps[-1][0]) if len(steps) > 1 else now

    def _trim(self, now: float) -> None:
        """Forget the past: steps that ended before `now`."""
        times, rates, counts = self._left.times, self._left.rates, self._left.counts
        for link in np.flatnonzero(counts > 12).tolist():
            count = int(counts[link])
            gone = int(np.searchsorted(times[link, :count], now, side="right")) - 1
            if gone > 0:
                times[link, : count - gone] = times[link, gone:count]
                rates[link, : count - gone] = rates[link, gone:count]
                times[link, 0] = 0.0
                counts[link] = count - gone
