"""Measures the cost of an all-reduce on a job's own process group.

::

    measured = measure_allreduce(torch_network(), largest_bytes=gradient_bytes(model))
    profile = capture.profile("my-model", workers=8, allreduce=measured.document)

All ranks must call it together. The cost is the time of an all-reduce in a stream of them, one after another.
After a pause the first call is faster, because buffers and rate limiters of the network have room. So calls
are timed in runs without a pause. Ranks never leave a barrier at exactly the same moment, and an all-reduce
that waits for a late rank takes longer than its cost. So each run begins with a call that does not count, and
the time of a run is the least of all ranks.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
import torch.distributed as dist

from pace.documents.collective_costs import SampledAllReduce, SampledHalf
from pace.errors import InvalidOptions
from pace.runtime.transports.device import Clock, CudaDevice, apart, clock_of

if dist.is_available():
    # Its functions have the default group of the moment of its import as an argument. Optimizers import it,
    # and after `init_process_group` it would keep Gloo's threads beyond `destroy_process_group`. A thread
    # that ends while Python does aborts the process.
    import torch.distributed.nn.functional

SMALLEST_BYTES = 1024
MIN_SIZES = 6
CALLS_AT_ONCE = 3
SECONDS_PER_RUN = 0.05
MIN_RUNS = 3
FASTER_IN_PAIRS = 1.1


class Network(Protocol):
    """The process group that will carry the gradients."""

    num_workers: int
    device: torch.device
    clock: Clock

    def start(self, tensor: torch.Tensor, name: str) -> Callable[[], Any]:
        """Begin an all-reduce of `tensor`; return a function that waits for its end.

        That function returns the clock's stamp of the end. If the clock runs behind the host, it may return
        before the end.
        """

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def minimum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the element-wise minimum over all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeMeasurement:
    """The measurement of one size.

    Attributes
    ----------
    duration_s
        The median over runs of the mean duration, in seconds.
    margin_s
        Half the width of the median's confidence interval, from order statistics, without an assumption about
        the distribution.
    num_calls
        Number of calls that were timed.
    """

    size_bytes: int
    duration_s: float
    margin_s: float
    num_calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceMeasurement:
    """The measured cost of all-reduces, by size.

    Attributes
    ----------
    confidence
        The confidence of each size's margin.
    sizes
        The measurement of each size.
    pair_speedup
        How many times faster two all-reduces at once are than one after another, by size in bytes.
    """

    num_workers: int
    confidence: float
    sizes: tuple[SizeMeasurement, ...]
    pair_speedup: dict[int, float]

    @property
    def document(self) -> SampledAllReduce:
        """The cost for a profile."""
        return SampledAllReduce(samples=tuple((size.size_bytes, size.duration_s) for size in self.sizes))

    @property
    def half(self) -> SampledHalf:
        """The cost of a reduce-scatter or an all-gather for a profile."""
        return SampledHalf(samples=self.document.samples)

    @property
    def one_at_a_time(self) -> bool:
        """Whether all-reduces one at a time are about as fast as two at once, as PACE's model assumes."""
        return all(speedup < FASTER_IN_PAIRS for speedup in self.pair_speedup.values())

    @property
    def metadata(self) -> dict[str, Any]:
        """The numbers of the measurement for a profile's metadata."""
        return {
            "allreduce_confidence": self.confidence,
            "allreduce_margins_s": [size.margin_s for size in self.sizes],
            "allreduce_calls": [size.num_calls for size in self.sizes],
            "allreduce_pair_speedup": {str(size): value for size, value in self.pair_speedup.items()},
        }


def gradient_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of all gradients together, the size of the largest possible group."""
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


def measured_sizes(largest_bytes: int) -> list[int]:
    """Return sizes from 1 KiB to beyond `largest_bytes`, at least six, each a multiple of 1 KiB."""
    end = max(largest_bytes * 1.05, SMALLEST_BYTES * 4.0 ** (MIN_SIZES - 1))
    steps = math.ceil(math.log(end / SMALLEST_BYTES, 4))
    ratio = (end / SMALLEST_BYTES) ** (1 / steps)
    return [math.ceil(ratio**step) * SMALLEST_BYTES for step in range(steps + 1)]


def measure_allreduce(
    network: Network,
    *,
    largest_bytes: int,
    confidence: float = 0.95,
    precision: float = 0.05,
    max_runs: int = 60,
    max_seconds_per_size: float = 2.0,
    warmup_calls: int = 3,
    pairs: bool = True,
) -> AllReduceMeasurement:
    """Time all-reduces of six or more sizes; every rank of the group must call it.

    Parameters
    ----------
    largest_bytes
        Size of the largest group that may be sent. The measured sizes go beyond it.
    confidence, precision
        A size is repeated until the median's confidence interval is narrower than +- `precision` of the
        median. The precision reached is in the result.
    max_runs, max_seconds_per_size
        Limits of the repetition of a size, with the calls that do not count. At least three runs are made.
    warmup_calls
        Number of calls of each size before those that count.
    pairs
        Whether to measure two all-reduces at once as well.

    Raises
    ------
    InvalidOptions
        If `confidence` is out of range.
    """
    if not 0.5 <= confidence < 1:
        raise InvalidOptions(f"confidence={confidence}: expected 0.5 or more and less than 1")
    buffer = torch.zeros(measured_sizes(largest_bytes)[-1] // 4, dtype=torch.float32, device=network.device)
    sizes = []
    for size_bytes in measured_sizes(largest_bytes):
        tensor = buffer[: size_bytes // 4]
        time_run(network, [tensor], calls=warmup_calls)
        durations: list[float] = []
        calls = CALLS_AT_ONCE
        spent_s = 0.0
        # Every rank has the same minima, so all ranks make the same runs.
        while True:
            before = 1 if calls == CALLS_AT_ONCE else calls
            mean = time_run(network, [tensor], calls=calls, before=before)
            spent_s += (before + calls) * mean
            if calls * mean < SECONDS_PER_RUN and not durations:
                calls *= 2
                continue
            durations.append(mean)
            low, high = median_interval(durations, confidence)
            median = float(np.median(durations))
            sure = math.ldexp(1.0, 1 - len(durations)) <= 1 - confidence
            narrow = sure and high - low <= 2 * precision * median
            used_up = len(durations) >= max_runs or spent_s >= max_seconds_per_size
            if narrow or (used_up and len(durations) >= MIN_RUNS):
                break
        sizes.append(
            SizeMeasurement(
                size_bytes=size_bytes,
                duration_s=median,
                margin_s=(high - low) / 2,
                num_calls=len(durations) * calls,
            )
        )
    return AllReduceMeasurement(
        num_workers=network.num_workers,
        confidence=confidence,
        sizes=tuple(sizes),
        pair_speedup={
            size.size_bytes: _pair_speedup(network, size.size_bytes)
            for size in (sizes[-3:-1] if pairs else [])
        },
    )


def median_interval(durations: list[float], confidence: float) -> tuple[float, float]:
    """Return the narrowest pair of order statistics that contains the median with this confidence.

    The number of observations below the true median is binomial with p = 1/2 for any distribution. With too
    few observations for the confidence, the pair is the smallest and the largest one.
    """
    ordered = sorted(durations)
    count = len(ordered)
    left_out = 0
    missed = 0.0
    while 2 * (left_out + 1) < count:
        missed += 2 * math.comb(count, left_out) / 2**count
        if missed > 1 - confidence:
            break
        left_out += 1
    left_out = max(left_out - 1, 0)
    return ordered[left_out], ordered[count - 1 - left_out]


def time_run(network: Network, tensors: list[torch.Tensor], *, calls: int, before: int = 1) -> float:
    """Return the mean seconds of `calls` rounds without a pause; each round sends all tensors at once.

    The first `before` rounds do not count, because buffers and rate limiters of the network have room after a
    pause.
    """
    network.barrier()
    for _ in range(before):
        _send(network, tensors)
    _finish(network)
    started = time.perf_counter()
    for _ in range(calls):
        _send(network, tensors)
    _finish(network)
    mean = (time.perf_counter() - started) / calls
    return float(network.minimum(torch.tensor([mean], dtype=torch.float64, device="cpu")))


def _send(network: Network, tensors: list[torch.Tensor]) -> None:
    waits = [
        network.start(tensor, f"measure.{number}.{tensor.numel()}") for number, tensor in enumerate(tensors)
    ]
    for wait in waits:
        wait()


def _finish(network: Network) -> None:
    if network.device.type == "cuda":
        torch.cuda.synchronize(network.device)


def _pair_speedup(network: Network, size_bytes: int) -> float:
    pair = [torch.zeros(size_bytes // 4, dtype=torch.float32, device=network.device) for _ in range(2)]
    one = [time_run(network, pair[:1], calls=CALLS_AT_ONCE) for _ in range(MIN_RUNS)]
    both = [time_run(network, pair, calls=CALLS_AT_ONCE) for _ in range(MIN_RUNS)]
    return 2 * float(np.median(one)) / float(np.median(both))


CollectiveName = Literal["all-reduce", "reduce-scatter", "all-gather"]


class _TorchNetwork:
    def __init__(self, group: Any, collective: CollectiveName) -> None:
        self._collective = collective
        self._group = group
        self.num_workers = dist.get_world_size(group)
        nccl = dist.get_backend(group) == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
        self._queues = CudaDevice(self.device) if nccl else None
        self.clock: Clock = clock_of(self._queues)

    def start(self, tensor: torch.Tensor, name: str) -> Callable[[], Any]:
        del name
        with apart(self._queues):
            work = self._call(tensor)

        def wait() -> Any:
            with apart(self._queues):
                work.wait()
                return self.clock.now()

        return wait

    def _call(self, tensor: torch.Tensor) -> Any:
        group = self._group
        whole = tensor[: tensor.numel() // self.num_workers * self.num_workers]
        mine = whole.view(self.num_workers, -1)[dist.get_rank(group)]
        if self._collective == "all-reduce":
            return dist.all_reduce(tensor, group=group, async_op=True)
        if self._collective == "reduce-scatter":
            scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
            return scatter(torch.empty_like(mine), whole, group=group, async_op=True)
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        return gather(whole, mine.clone(), group=group, async_op=True)

    def barrier(self) -> None:
        dist.barrier(self._group)

    def minimum(self, values: torch.Tensor) -> torch.Tensor:
        reduced = values.to(self.device)
        dist.all_reduce(reduced, op=dist.ReduceOp.MIN, group=self._group)
        return reduced.cpu()


class _HorovodNetwork:
    def __init__(self) -> None:
        import horovod.torch as hvd

        self._hvd = hvd
        self.num_workers = hvd.size()
        on_cuda = torch.cuda.is_available() and bool(hvd.nccl_built())
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")
        self._queues = CudaDevice(self.device) if on_cuda else None
        self.clock: Clock = clock_of(self._queues)

    def start(self, tensor: torch.Tensor, name: str) -> Callable[[], Any]:
        handle = self._hvd.allreduce_async_(tensor, op=self._hvd.Sum, name=name)

        def wait() -> Any:
            self._hvd.synchronize(handle)
            with apart(self._queues):  # compute that is queued would delay the stamp
                return self.clock.now()

        return wait

    def barrier(self) -> None:
        self._hvd.barrier()

    def minimum(self, values: torch.Tensor) -> torch.Tensor:
        reduced: torch.Tensor = self._hvd.allreduce(values, op=self._hvd.Min, name="measure.minimum")
        return reduced


def torch_network(group: Any = None, *, collective: CollectiveName = "all-reduce") -> Network:
    """Return the network of a torch.distributed process group; None is the default group.

    With another `collective`, ``measure_allreduce`` measures that one instead. Sizes are those of the whole
    buffer, and a profile takes the result's ``half``. It measures the backend's own collective; Gloo's
    reduce-scatter sends as many bytes as an all-reduce.
    """
    return _TorchNetwork(group, collective)


def horovod_network() -> Network:
    """Return Horovod's network; ``horovod.torch.init()`` must have been called."""
    return _HorovodNetwork()
