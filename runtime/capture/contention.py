"""Measures how compute and all-reduces slow one another down; a profile says the one as `compute_slowdown`.

An iteration is timed as it is and with a stream of all-reduces beside it. What the second takes longer is
what its traffic has cost: ``1 - 1 / slowdown`` of every second of it (``pace.solver.compute_clock``). A
second of traffic is counted at what the same all-reduces take with nothing beside them, because a profile
prices them so: where compute slows them in turn, the loss is theirs all the same.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import numpy as np
import torch

from pace.runtime.capture.allreduce_cost import Network, median_interval, time_run

# Traffic is to last so many times as long as the iteration, which it lengthens.
COVERING = 1.3
# An iteration has room for so many all-reduces at the least, so that the share of the last one counts little.
CALLS_IN_ITERATION = 6
# A factor counts as noise unless the median's interval of this confidence lies above 1.
CONFIDENCE = 0.75
# Fewer pairs of iterations cannot be told from noise.
LEAST_PAIRS = 3
# More cannot be told from compute that stands still.
LARGEST = 10.0


class BesideTraffic:
    """A stream of all-reduces on a thread of its own, every rank's of the same number.

    Parameters
    ----------
    calls, call_s
        How many, and what one takes with nothing beside it.
    """

    def __init__(self, network: Network, size_bytes: int, *, calls: int, call_s: float) -> None:
        self._network = network
        self._buffer = torch.zeros(max(size_bytes // 4, 1), dtype=torch.float32, device=network.device)
        self._calls = calls
        self._call_s = call_s
        self._ends_s: list[float] = []
        self._error: BaseException | None = None
        self._started_s = time.perf_counter()
        self._thread = threading.Thread(target=self._send, name="pace-traffic", daemon=True)
        self._thread.start()

    def _send(self) -> None:
        try:
            for number in range(self._calls):
                self._network.start(self._buffer, f"traffic.{number % 2}")()
                self._ends_s.append(time.perf_counter())
        except BaseException as error:  # raised where the caller waits
            self._error = error

    def finish(self) -> tuple[float, float]:
        """Wait for the last all-reduce; return the seconds of traffic until now, as alone and as it was.

        Raises
        ------
        CommunicationFailed
            When a peer is gone, or what else the network raises.
        """
        now = time.perf_counter()
        self._thread.join()
        if self._error is not None:
            raise self._error
        ends = [self._started_s, *self._ends_s]
        done = int(np.searchsorted(ends, now, side="right")) - 1
        share = (now - ends[done]) / (ends[done + 1] - ends[done]) if done + 1 < len(ends) else 0.0
        return (done + share) * self._call_s, min(now, ends[-1]) - self._started_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedIteration:
    """An iteration beside traffic, and one without, next to one another in time; seconds.

    Attributes
    ----------
    traffic_s, carried_s
        What the all-reduces beside it take with nothing beside them, and how long they took.
    """

    plain_s: float
    loaded_s: float
    traffic_s: float
    carried_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """How compute and all-reduces slow one another down.

    Attributes
    ----------
    compute_slowdown
        The profile's: of compute, for each second that the all-reduces take alone.
    allreduce_slowdown
        How many times as long all-reduces take beside compute. No profile says it; multiply a cost by it to
        predict windows in which little communication is exposed.
    """

    compute_slowdown: float = 1.0
    allreduce_slowdown: float = 1.0

    @property
    def slowdown_while_carried(self) -> float:
        """The profile's `compute_slowdown` where its costs are multiplied by `allreduce_slowdown`."""
        lost = (1 - 1 / self.compute_slowdown) / self.allreduce_slowdown
        return 1 / (1 - lost)


def contention_of(iterations: Sequence[LoadedIteration]) -> Contention:
    """Return both factors: medians over pairs of iterations; 1 where within noise, or where pairs are few."""
    loaded = [each for each in iterations if each.traffic_s > 0]
    return Contention(
        compute_slowdown=_above_noise([_factor(each) for each in loaded]),
        allreduce_slowdown=_above_noise([min(each.carried_s / each.traffic_s, LARGEST) for each in loaded]),
    )


def _above_noise(factors: list[float]) -> float:
    if len(factors) < LEAST_PAIRS:
        return 1.0
    low, _ = median_interval(factors, CONFIDENCE)
    return max(float(np.median(factors)), 1.0) if low > 1 else 1.0


def _factor(pair: LoadedIteration) -> float:
    lost = (pair.loaded_s - pair.plain_s) / pair.traffic_s
    return 1 / (1 - min(lost, 1 - 1 / LARGEST))


class ContentionMeasurement:
    """Times iterations in turns, as they are and beside traffic; every rank must make the same calls.

    Iterations lie between ``begin`` and ``end``, their own communication inside ``aside``: before it begins,
    the traffic beside them is over. For compute on the CPU, which the host's clock times.

    Parameters
    ----------
    costs
        Bytes and seconds of all-reduces with nothing beside them, the same on all ranks. The largest of which
        an iteration has room for several is sent.
    pairs
        How many iterations of each kind count; the first pair, which pays for threads and memory, does not.
    """

    def __init__(self, network: Network, costs: Sequence[tuple[int, float]], *, pairs: int) -> None:
        self._network = network
        self._costs = sorted(costs)
        self._left = pairs + 1
        self._pairs: list[LoadedIteration] = []
        self._plain_s: float | None = None
        self._longest_s = 0.0
        self._traffic: BesideTraffic | None = None
        self._traffic_s = self._carried_s = self._aside_s = self._begun_s = 0.0

    @property
    def finished(self) -> bool:
        """Whether all iterations are timed."""
        return self._left == 0

    def begin(self) -> None:
        """Begin an iteration, with nothing in flight."""
        self._network.barrier()
        self._traffic_s = self._carried_s = self._aside_s = 0.0
        if self._plain_s is not None:
            fitting = [each for each in self._costs if each[1] <= self._longest_s / CALLS_IN_ITERATION]
            size_bytes, call_s = fitting[-1] if fitting else self._costs[0]
            calls = max(math.ceil(COVERING * self._longest_s / call_s), 1)
            self._traffic = BesideTraffic(self._network, size_bytes, calls=calls, call_s=call_s)
        self._begun_s = time.perf_counter()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Leave out what happens inside."""
        started_s = time.perf_counter()
        self._drain()
        try:
            yield
        finally:
            self._aside_s += time.perf_counter() - started_s

    def end(self) -> None:
        """End an iteration.

        Raises
        ------
        CommunicationFailed
            When a peer is gone.
        """
        lasted_s = time.perf_counter() - self._begun_s - self._aside_s
        self._drain()
        if self._plain_s is None:
            self._plain_s, self._longest_s = lasted_s, greatest(self._network, lasted_s)
            return
        self._pairs.append(
            LoadedIteration(
                plain_s=self._plain_s,
                loaded_s=lasted_s,
                traffic_s=self._traffic_s,
                carried_s=self._carried_s,
            )
        )
        self._plain_s = None
        self._left -= 1

    def stop(self) -> None:
        """End the traffic in the middle of an iteration; idempotent, and raises nothing."""
        with suppress(Exception):
            self._drain()

    def contention(self, alone_s: Sequence[float] | None = None) -> Contention:
        """Return this rank's factors.

        Parameters
        ----------
        alone_s
            What an iteration next to each pair took where no backend runs, for a profile captured so: a
            backend may work while nothing is sent, as Horovod does.
        """
        pairs = self._pairs
        if alone_s is not None:
            pairs = [replace(pair, plain_s=own_s) for pair, own_s in zip(pairs, alone_s, strict=True)]
        return contention_of(pairs[1:])

    def _drain(self) -> None:
        if self._traffic is not None:
            traffic, self._traffic = self._traffic, None
            traffic_s, carried_s = traffic.finish()
            self._traffic_s += traffic_s
            self._carried_s += carried_s


def measure_contention(
    iterate: Callable[[], None], network: Network, *, size_bytes: int, pairs: int = 9
) -> Contention:
    """Time iterations with and without all-reduces beside them; every rank of the group must call it.

    Parameters
    ----------
    iterate
        One iteration of training on this rank, without communication, on the CPU.
    size_bytes
        Of one all-reduce, at most: an iteration has room for several. Take what a group may have.
    pairs
        How many iterations of each kind, in turns.

    Returns
    -------
    Contention
        The greatest factors of any rank, for which the others wait; 1 where they are within noise.
    """
    measurement = ContentionMeasurement(network, costs_up_to(size_bytes, network), pairs=pairs)
    while not measurement.finished:
        measurement.begin()
        iterate()
        measurement.end()
    return slowest_of(network, measurement.contention())


def slowest_of(network: Network, found: Contention) -> Contention:
    """Return the greatest factors of any rank, for which the others wait; every rank must call it."""
    return Contention(
        compute_slowdown=greatest(network, found.compute_slowdown),
        allreduce_slowdown=greatest(network, found.allreduce_slowdown),
    )


def costs_up_to(size_bytes: int, network: Network) -> list[tuple[int, float]]:
    """Time all-reduces of four sizes with nothing beside them; every rank must call it.

    Returns
    -------
    list of (int, float)
        Bytes and seconds, as ``ContentionMeasurement`` takes them.
    """
    sizes = sorted({max(size_bytes // 4**step // 4 * 4, 4) for step in range(4)})
    return [(size, _call_s(network, size)) for size in sizes]


def _call_s(network: Network, size_bytes: int) -> float:
    buffer = torch.zeros(size_bytes // 4, dtype=torch.float32, device=network.device)
    return float(np.median([time_run(network, [buffer], calls=3) for _ in range(3)]))


def greatest(network: Network, value: float) -> float:
    """Return the greatest value of any rank; every rank must call it."""
    return -float(network.minimum(torch.tensor([-value], dtype=torch.float64, device="cpu")))
