"""Measures how compute and all-reduces slow one another down: a profile's `compute_slowdown` and `load`.

An iteration is timed alone, and during a stream of all-reduces. The extra time of the second is the cost of
its traffic: ``1 - 1 / slowdown`` of every second of traffic (``pace.solver.compute_clock``). On CPUs, one
size of all-reduces is measured: they share cores and memory with compute, and all take as many times as long.

On a GPU, a call waits for processors that compute holds and for the later rank, so small calls take several
times as long as alone. There, several sizes are measured.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pace.documents.load import Load
from pace.errors import InvalidOptions
from pace.runtime.capture.allreduce_cost import Network, median_interval, time_run

# Traffic lasts this many times as long as the iteration, as it lengthens the iteration.
COVERING = 1.3
# An iteration has room for at least this many all-reduces, so that the partial last one has little effect.
CALLS_IN_ITERATION = 6
# On a device, so many sizes are measured, each of which fits this often into an iteration.
SIZES_ON_DEVICE = 5
CALLS_ON_DEVICE = 3
# A factor counts as noise unless the median's interval with this confidence is above 1.
CONFIDENCE = 0.75
# On CPUs, larger all-reduces than those timed take longer in proportion, up to this many times as large.
BEYOND = 64
# With fewer pairs of iterations, a factor cannot be distinguished from noise.
LEAST_PAIRS = 3
# A larger factor cannot be distinguished from compute that has stopped.
LARGEST = 10.0
# So many pairs of iterations for each size.
PAIRS_PER_SIZE = 2
# On a device, so many calls are queued, so that the next one never waits for the host.
QUEUED_CALLS = 8


class BesideTraffic:
    """A stream of all-reduces in its own thread, with the same number of calls on every rank.

    Parameters
    ----------
    calls
        Number of all-reduces.
    call_s
        How long one takes without compute, in seconds.
    """

    def __init__(self, network: Network, size_bytes: int, *, calls: int, call_s: float) -> None:
        self._network = network
        self._buffer = torch.zeros(max(size_bytes // 4, 1), dtype=torch.float32, device=network.device)
        self._calls = calls
        self._call_s = call_s
        self._ends: list[Any] = []
        self._error: BaseException | None = None
        self._started = network.clock.now()
        self._thread = threading.Thread(target=self._send, name="pace-traffic", daemon=True)
        self._thread.start()

    def _send(self) -> None:
        clock = self._network.clock
        at_once = QUEUED_CALLS if clock.runs_behind else 1
        waits: deque[Callable[[], Any]] = deque()
        try:
            for number in range(self._calls):
                waits.append(self._network.start(self._buffer, f"traffic.{number % (at_once + 1)}"))
                while len(waits) >= at_once or (waits and number == self._calls - 1):
                    ended = waits.popleft()()
                    self._ends.append(ended)
                    if clock.runs_behind:
                        ended.synchronize()
        except BaseException as error:  # raised where the caller waits
            self._error = error

    def finish(self, now: Any) -> tuple[float, float]:
        """Wait for the last all-reduce; return the seconds of traffic without compute, and as measured.

        Parameters
        ----------
        now
            A stamp of the moment up to which traffic counts.

        Raises
        ------
        CommunicationFailed
            If a peer is gone. Other errors of the network are raised too.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        *ends, now_s = self._network.clock.seconds([self._started, *self._ends, now])
        done = int(np.searchsorted(ends, now_s, side="right")) - 1
        share = (now_s - ends[done]) / (ends[done + 1] - ends[done]) if done + 1 < len(ends) else 0.0
        return (done + share) * self._call_s, min(now_s, ends[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedIteration:
    """An iteration during traffic, and one without right before or after it; times in seconds.

    Attributes
    ----------
    plain_s, loaded_s
        Duration of the iteration without traffic, and of the one with it.
    traffic_s, carried_s
        How long the all-reduces take without compute, and how long they took.
    size_bytes, call_s
        The size of the all-reduces, and how long one takes without compute.
    """

    plain_s: float
    loaded_s: float
    traffic_s: float
    carried_s: float
    size_bytes: int
    call_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """How compute and all-reduces slow one another down.

    Attributes
    ----------
    compute_slowdown
        The profile's `compute_slowdown`, relative to the time that all-reduces take during compute.
    iteration_s
        Seconds of an iteration without traffic, the median over pairs; None if too few were timed. From
        ``measure_contention``, each is the time of the rank that was slowest in that iteration.
    added_s
        By size in bytes, how many seconds longer an all-reduce takes during compute than alone; 0 if that is
        within noise. On CPUs, it is computed from one size.
    load
        The same as the `load` of a profile; None if it was not measured.
    """

    compute_slowdown: float = 1.0
    iteration_s: float | None = None
    added_s: tuple[tuple[int, float], ...] = ()

    @property
    def load(self) -> Load | None:
        """Described above."""
        return Load(delta=self.added_s) if self.added_s else None


def contention_of(
    iterations: Sequence[LoadedIteration], costs: Sequence[tuple[int, float]] = ()
) -> Contention:
    """Return medians over the pairs.

    With too few pairs, or if a median is within noise, the factor is 1 and the added times are 0.

    Parameters
    ----------
    costs
        On CPUs: bytes and seconds of all-reduces without compute, in order of bytes. During compute, all
        sizes take as many times as long as the one that was measured. On a device: empty, as each size was
        measured by itself.
    """
    loaded = [each for each in iterations if each.traffic_s > 0]
    if len(loaded) < LEAST_PAIRS:
        return Contention()
    factor = _above_noise([each.carried_s / each.traffic_s for each in loaded])
    beyond = [(BEYOND * size, BEYOND * seconds) for size, seconds in costs[-1:]]
    # While an iteration computes, a call does only `1 / factor` of what it does without compute.
    iteration_s = float(np.median([each.plain_s for each in loaded]))
    most_s = (1 - 1 / factor) * iteration_s
    by_size = {size: [min((factor - 1) * seconds, most_s)] for size, seconds in (*costs, *beyond)}
    for each in loaded if not costs else ():
        added_s = (each.carried_s / each.traffic_s - 1) * each.call_s * (factor > 1)
        by_size.setdefault(int(each.size_bytes), []).append(added_s)
    return Contention(
        compute_slowdown=_above_noise([_factor(each) for each in loaded]),
        iteration_s=iteration_s,
        added_s=tuple((size, max(float(np.median(added)), 0.0)) for size, added in sorted(by_size.items())),
    )


def _above_noise(factors: list[float]) -> float:
    low, _ = median_interval(factors, CONFIDENCE)
    return max(float(np.median(factors)), 1.0) if low > 1 else 1.0


def _factor(pair: LoadedIteration) -> float:
    lost = (pair.loaded_s - pair.plain_s) / pair.carried_s
    return 1 / (1 - min(lost, 1 - 1 / LARGEST))


class ContentionMeasurement:
    """Times iterations alternately without and with traffic; every rank must make the same calls.

    An iteration is between ``begin`` and ``end``, and its own communication inside ``aside``. The traffic
    ends before that begins.

    Parameters
    ----------
    costs
        Bytes and seconds of all-reduces without compute, the same on all ranks. The largest one of which
        several fit into an iteration is used; on a device, the largest ones in turn.
    pairs
        Number of iterations of each kind that count, at least; on a device, at least two for each size. The
        first pair, a warm-up, does not count.
    """

    def __init__(self, network: Network, costs: Sequence[tuple[int, float]], *, pairs: int) -> None:
        self._network = network
        self._clock = network.clock
        self._costs = sorted(costs)
        if self._clock.runs_behind:
            pairs = max(pairs, PAIRS_PER_SIZE * SIZES_ON_DEVICE)
        self._left = pairs + 1
        self._pairs: list[LoadedIteration] = []
        self._plain_s: float | None = None
        self._longest_s = 0.0
        self._traffic: BesideTraffic | None = None
        self._traffic_s = self._carried_s = self._call_s = 0.0
        self._size_bytes = 0
        self._stamps: list[Any] = []

    @property
    def finished(self) -> bool:
        """Whether all iterations are timed."""
        return self._left == 0

    @property
    def pairs(self) -> list[LoadedIteration]:
        """What was timed on this rank; the first pair is left out."""
        return self._pairs[1:]

    def begin(self) -> None:
        """Begin an iteration, with nothing in flight."""
        self._network.barrier()
        self._traffic_s = self._carried_s = 0.0
        if self._plain_s is not None:
            self._size_bytes, self._call_s = self._next_size()
            calls = max(math.ceil(COVERING * self._longest_s / self._call_s), 1)
            self._traffic = BesideTraffic(self._network, self._size_bytes, calls=calls, call_s=self._call_s)
        self._stamps = [self._clock.now()]

    def _next_size(self) -> tuple[int, float]:
        behind = self._clock.runs_behind
        room_s = self._longest_s / (CALLS_ON_DEVICE if behind else CALLS_IN_ITERATION)
        fitting = [each for each in self._costs if each[1] <= room_s] or self._costs[:1]
        sizes = fitting[-SIZES_ON_DEVICE:] if behind else fitting[-1:]
        return sizes[self._left % len(sizes)]

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Exclude the time inside."""
        self._stamps.append(self._clock.now())
        self._drain()
        try:
            yield
        finally:
            self._stamps.append(self._clock.now())

    def end(self) -> None:
        """End an iteration.

        Raises
        ------
        CommunicationFailed
            If a peer is gone.
        """
        self._stamps.append(self._clock.now())
        self._drain()
        at_s = self._clock.seconds(self._stamps)
        lasted_s = sum(after - before for before, after in zip(at_s[::2], at_s[1::2], strict=True))
        if self._plain_s is None:
            self._plain_s, self._longest_s = lasted_s, greatest(self._network, lasted_s)
            return
        self._pairs.append(
            LoadedIteration(
                plain_s=self._plain_s,
                loaded_s=lasted_s,
                traffic_s=self._traffic_s,
                carried_s=self._carried_s,
                size_bytes=self._size_bytes,
                call_s=self._call_s,
            )
        )
        self._plain_s = None
        self._left -= 1

    def stop(self) -> None:
        """End the traffic during an iteration. Idempotent; raises nothing."""
        with suppress(Exception):
            self._stamps.append(self._clock.now())
            self._drain()

    def contention(self, alone_s: Sequence[float] | None = None) -> Contention:
        """Return this rank's factors.

        Parameters
        ----------
        alone_s
            Seconds of an iteration next to each pair without any backend, if the profile was captured in this
            way: a backend may use the CPU while nothing is sent, as Horovod does.
        """
        pairs = self.pairs
        if alone_s is not None:
            own = zip(pairs, alone_s[1:], strict=True)
            pairs = [replace(pair, plain_s=own_s) for pair, own_s in own]
        return contention_of(pairs, () if self._clock.runs_behind else self._costs)

    def _drain(self) -> None:
        if self._traffic is not None:
            traffic, self._traffic = self._traffic, None
            traffic_s, carried_s = traffic.finish(self._stamps[-1])
            self._traffic_s += traffic_s
            self._carried_s += carried_s


def measure_contention(
    iterate: Callable[[], None], network: Network, *, size_bytes: int, pairs: int = 9
) -> Contention:
    """Time iterations with and without all-reduces beside them; every rank of the group must call it.

    All ranks wait for the one that computes longest, so an iteration's times are those of that rank.

    Give the result's `compute_slowdown` and `load` to the profile.

    Parameters
    ----------
    iterate
        One iteration of training on this rank, without communication.
    size_bytes
        Largest size of one all-reduce, for example that of a group. Several must fit into an iteration.
    pairs
        Number of iterations of each kind, which alternate. More show a smaller factor beside noise.

    Returns
    -------
    Contention
        The same on all ranks.

    Raises
    ------
    InvalidOptions
        On all ranks, if `iterate` computes on a GPU and the network is not NCCL's.
    """
    _warm_up(iterate, network)
    costs = costs_up_to(size_bytes, network)
    measurement = ContentionMeasurement(network, costs, pairs=pairs)
    while not measurement.finished:
        measurement.begin()
        iterate()
        measurement.end()
    times = torch.tensor([astuple(pair) for pair in measurement.pairs], dtype=torch.float64, device="cpu")
    names = [field.name for field in fields(LoadedIteration)]
    of_slowest = (-network.minimum(-times)).tolist()
    iterations = [LoadedIteration(**dict(zip(names, each, strict=True))) for each in of_slowest]
    return contention_of(iterations, () if network.clock.runs_behind else costs)


def slowest_of(found: Sequence[Contention]) -> Contention:
    """Return the largest values over all ranks, as the others wait for that rank."""
    added_s: dict[int, float] = {}
    for size, seconds in (entry for each in found for entry in each.added_s):
        added_s[size] = max(added_s.get(size, 0.0), seconds)
    return Contention(
        compute_slowdown=max(each.compute_slowdown for each in found),
        added_s=tuple(sorted(added_s.items())),
    )


class _Devices(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of torch
    """Notes the devices that compute inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch
        self.found: set[str] = set()

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: tuple[Any, ...] = (), options: Any = None
    ) -> Any:
        result = operation(*arguments, **(options or {}))
        leaves = torch.utils._pytree.tree_leaves(result)
        self.found.update(leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor))
        return result


def _warm_up(iterate: Callable[[], None], network: Network) -> None:
    """Iterate once; on all ranks, refuse what the network's clock cannot time."""
    with _Devices() as devices:
        iterate()
    behind = sorted(devices.found - {"cpu", "meta"})
    if greatest(network, float(bool(behind) and not network.clock.runs_behind)):
        raise InvalidOptions(
            f"iterate() computes on {behind[0] if behind else 'a device of another rank'}, but the host's"
            " clock times this network: give measure_contention a network over NCCL"
        )


def costs_up_to(size_bytes: int, network: Network) -> list[tuple[int, float]]:
    """Time all-reduces of four sizes without compute; every rank must call it.

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
    """Return the largest value of all ranks; every rank must call it."""
    return -float(network.minimum(torch.tensor([-value], dtype=torch.float64, device="cpu")))
