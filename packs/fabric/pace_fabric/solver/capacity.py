"""Residual capacity of every link: when a transfer would end, and what is left once it is booked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from pace.solver.arrays import FloatArray, IntArray

# Two ends closer than this are the same moment: ties then go to batch order.
SAME_MOMENT_S = 1e-9
_ROOM = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A booked transfer.

    Attributes
    ----------
    end_s
        When the last byte arrives; infinity if it never does.
    pieces
        (n, 3): start and end in seconds, rate in bytes per second. None for a transfer inside a host.
    """

    end_s: float
    pieces: FloatArray

    @property
    def start_s(self) -> float:
        """When the first byte leaves; the end for a transfer without pieces."""
        return float(self.pieces[0, 0]) if len(self.pieces) else self.end_s


class Capacities:
    """Free rate of every link, as step functions of time.

    Parameters
    ----------
    times, rates
        (links, room): when steps begin, and the bytes per second from then on. Link ``2 h`` is host h's way
        up and ``2 h + 1`` its way down. The first step begins at 0.
    counts
        (links,): how many steps of each link are in use.
    """

    def __init__(self, times: FloatArray, rates: FloatArray, counts: IntArray) -> None:
        self.times = times
        self.rates = rates
        self.counts = counts

    @classmethod
    def of_steps(cls, links: Sequence[Sequence[tuple[float, float]]]) -> Self:
        """Build from a list of (start, rate) for each link; the first start is 0, and starts rise."""
        room = max(_ROOM, 2 * max((len(steps) for steps in links), default=1))
        times, rates = np.zeros((len(links), room)), np.zeros((len(links), room))
        for link, steps in enumerate(links):
            times[link, : len(steps)] = [start for start, _ in steps]
            rates[link, : len(steps)] = [rate for _, rate in steps]
        return cls(times, rates, np.array([len(steps) for steps in links], dtype=np.int64))

    @classmethod
    def constant(cls, up: Sequence[float] | FloatArray, down: Sequence[float] | FloatArray) -> Self:
        """Build from each host's rates up and down, the same forever."""
        pairs = zip(up, down, strict=True)
        return cls.of_steps([[(0.0, float(rate))] for pair in pairs for rate in pair])

    @property
    def num_hosts(self) -> int:
        """How many hosts there are."""
        return len(self.counts) // 2

    def copy(self) -> "Capacities":
        """Return a copy that can be booked without changing this one."""
        return Capacities(self.times.copy(), self.rates.copy(), self.counts.copy())

    def reversed(self) -> "Capacities":
        """Return the network with the two links of every host exchanged."""
        swap = np.arange(len(self.counts)) ^ 1
        return Capacities(self.times[swap], self.rates[swap], self.counts[swap])

    def steps(self, link: int) -> list[tuple[float, float]]:
        """Return the (start, rate) of one link's steps."""
        count = self.counts[link]
        pairs = zip(self.times[link, :count].tolist(), self.rates[link, :count].tolist(), strict=True)
        return list(pairs)

    def rate_at(self, link: int, at_s: float) -> float:
        """Return what is left of one link at a moment."""
        count = self.counts[link]
        return float(self.rates[link, np.searchsorted(self.times[link, :count], at_s, side="right") - 1])

    def most(self) -> FloatArray:
        """Return the greatest rate that is ever left of each link."""
        used = np.arange(self.rates.shape[1]) < self.counts[:, None]
        greatest: FloatArray = np.where(used, self.rates, 0.0).max(axis=1)
        return greatest

    def finish(self, source: int, target: int, size_bytes: float, start_s: float = 0.0) -> float:
        """Return the least T such that [start_s, T] carries the bytes; infinity if none does.

        A transfer inside a host, or of nothing, ends when it starts.
        """
        from pace_fabric.solver.kernels import capacity as kernel

        end: float = kernel.finish(
            self.times, self.rates, self.counts, source, target, float(size_bytes), float(start_s)
        )
        return end

    def reserve(self, source: int, target: int, size_bytes: float, start_s: float = 0.0) -> Reservation:
        """Book a transfer at all the rate that is left on its path, from `start_s` on."""
        from pace_fabric.solver.kernels import capacity as kernel

        pieces = np.empty((2 * self.times.shape[1], 3))
        while True:
            end, num = kernel.reserve(
                self.times, self.rates, self.counts, pieces, source, target, float(size_bytes), float(start_s)
            )
            if end != kernel.FULL:
                return Reservation(end_s=end, pieces=pieces[:num].copy())
            self.widen()
            pieces = np.empty((2 * self.times.shape[1], 3))

    def book(self, source: int, target: int, pieces: FloatArray) -> None:
        """Subtract the pieces (start, end, rate) of a transfer that is planned already."""
        from pace_fabric.solver.kernels import capacity as kernel

        if source == target or not len(pieces):
            return
        for link in (2 * source, 2 * target + 1):
            while self.counts[link] + 2 * len(pieces) > self.times.shape[1]:
                self.widen()
            kernel.take(self.times, self.rates, self.counts, link, pieces, len(pieces))

    def widen(self) -> None:
        """Make room for twice as many steps."""
        self.times = np.concatenate((self.times, np.zeros_like(self.times)), axis=1)
        self.rates = np.concatenate((self.rates, np.zeros_like(self.rates)), axis=1)
