"""What an all-reduce costs, measured between real processes."""

import math
import random
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from pace.errors import InvalidOptions
from pace.runtime.capture import cost_sampler
from pace.runtime.capture.allreduce_cost import (
    AllReduceMeasurement,
    CollectiveName,
    Network,
    SizeMeasurement,
    gradient_bytes,
    horovod_network,
    measure_allreduce,
    measured_sizes,
    median_interval,
    time_run,
    torch_network,
)
from pace.runtime.capture.cost_sampler import (
    BUDGET_S,
    LONGEST_CALL_RATIO,
    LONGEST_CALL_S,
    SECONDS_PER_RUN,
    CostSampler,
    never_falling,
)
from pace.runtime.transports.device import Clock, HostClock
from tests.runtime.launch import Backend, run_ranks


def _time_halves(rank: int, size: int) -> tuple[list[float], list[float]]:
    collectives: tuple[CollectiveName, ...] = ("reduce-scatter", "all-gather")
    times = [
        time_run(torch_network(collective=collective), [torch.zeros(7)], calls=2)
        for collective in collectives
    ]
    own = torch.full((2 * size + 1,), float(rank))
    torch_network(collective="all-gather").start(own, "gather")()
    return times, own.tolist()


def test_halves_are_timed_as_all_reduces_are() -> None:
    """Three ranks, whose number divides no size: the same times on all, and a gather collects whole rows."""
    results = run_ranks(_time_halves, 3, backend="gloo")
    assert all(times == results[0][0] and min(times) > 0 for times, _ in results)
    assert [gathered[:6] for _, gathered in results] == [[0, 0, 1, 1, 2, 2]] * 3
    sizes = tuple(
        SizeMeasurement(size_bytes=size, duration_s=size * 1e-6, margin_s=0.0, num_calls=1)
        for size in (1024, 4096)
    )
    made = AllReduceMeasurement(num_workers=3, confidence=0.95, sizes=sizes, pair_speedup={})
    assert made.half.cost(3)([1024, 4096]) == pytest.approx([1024e-6, 4096e-6])


def _measure(_rank: int, _size: int, backend: Backend) -> AllReduceMeasurement:
    if backend == "horovod":
        import horovod.torch as hvd

        hvd.init()
    network = horovod_network() if backend == "horovod" else torch_network()
    return measure_allreduce(
        network, largest_bytes=300_000, max_runs=7, precision=0.2, max_seconds_per_size=0.5
    )


@pytest.mark.parametrize("backend", ["gloo", pytest.param("horovod", marks=pytest.mark.horovod)])
def test_all_ranks_measure_the_same(backend: Backend) -> None:
    """Six or more sizes from 1 KiB to beyond the largest group; every rank holds the same numbers."""
    if backend == "horovod":
        pytest.importorskip("horovod.torch")
    first, second = run_ranks(_measure, 2, backend, backend=backend)
    assert first.sizes == second.sizes
    assert first.num_workers == 2
    sizes = [size.size_bytes for size in first.sizes]
    assert len(sizes) >= 6
    assert sizes[0] == 1024
    assert sizes[-1] > 300_000
    assert all(size.duration_s > 0 and size.num_calls >= 9 for size in first.sizes)
    assert [seconds for _, seconds in first.document.samples] == [size.duration_s for size in first.sizes]
    assert all(speedup > 0 for speedup in first.pair_speedup.values())
    assert float(first.document.cost(2)(300_000)) > 0


class _Limited:
    """A link that lets a bucketful pass at once after a pause, and the rest at its rate."""

    num_workers = 1
    device = torch.device("cpu")
    clock: Clock = HostClock()
    rate_bytes_s = 40e6

    def __init__(self, bucket_bytes: float) -> None:
        self.bucket_bytes = self._free_bytes = bucket_bytes
        self._seen_s = time.perf_counter()

    def start(self, tensor: torch.Tensor, name: str) -> Callable[[], None]:
        del name
        now = time.perf_counter()
        refilled = self._free_bytes + (now - self._seen_s) * self.rate_bytes_s
        self._free_bytes = min(refilled, self.bucket_bytes) - tensor.numel() * tensor.element_size()
        self._seen_s = now
        until = now - min(self._free_bytes, 0.0) / self.rate_bytes_s
        return lambda: time.sleep(max(until - time.perf_counter(), 0.0))

    def barrier(self) -> None:
        time.sleep(self.bucket_bytes / self.rate_bytes_s)

    def minimum(self, values: torch.Tensor) -> torch.Tensor:
        return values


@pytest.mark.races_with_machine(reason="a pause of the machine lets the bucket fill again")
def test_what_passes_at_once_after_a_pause_is_not_taken_for_the_rate() -> None:
    """No size costs less than the link's rate allows for ever; a few calls of 1 KiB would cost nothing."""
    measured = measure_allreduce(
        _Limited(200_000), largest_bytes=1 << 20, max_runs=3, precision=1.0, pairs=False
    )
    # Shorter runs bear less: at this rate the bucket holds a twelfth of a run.
    sampled = CostSampler(_Limited(40_000), largest_bytes=1 << 20, slices=1).finish()
    for size in (*measured.sizes, *sampled.sizes):
        assert size.duration_s >= 0.9 * size.size_bytes / _Limited.rate_bytes_s, size


def _sample(_rank: int, _size: int, backend: Backend) -> tuple[AllReduceMeasurement, int]:
    # A busy machine measures all sizes, too.
    cost_sampler.LONGEST_CALL_S = 60.0
    if backend == "horovod":
        import horovod.torch as hvd

        hvd.init()
    network = horovod_network() if backend == "horovod" else torch_network()
    sampler = CostSampler(network, largest_bytes=300_000, slices=8)
    slices = 0
    while not sampler.finished:
        sampler.advance()
        slices += 1
    return sampler.finish(), slices


@pytest.mark.parametrize("backend", ["gloo", pytest.param("horovod", marks=pytest.mark.horovod)])
def test_all_ranks_sample_the_same_in_slices(backend: Backend) -> None:
    """Every rank makes the same calls in the same slices and holds the same numbers in the end."""
    if backend == "horovod":
        pytest.importorskip("horovod.torch")
    (first, slices), (second, other) = run_ranks(_sample, 2, backend, backend=backend)
    assert first.sizes == second.sizes
    assert 1 < slices == other
    sizes = [size.size_bytes for size in first.sizes]
    assert len(sizes) >= 6
    assert (sizes[0], sizes[-1] > 300_000) == (1024, True)
    assert all(size.duration_s > 0 for size in first.sizes)
    assert first.num_workers == 2


class _Affine:
    """A network on a clock of its own: a latency for every call, and seconds for every byte."""

    num_workers = 2
    device = torch.device("cpu")
    clock: Clock = HostClock()

    def __init__(self, latency_s: float, seconds_per_byte: float) -> None:
        self.latency_s = latency_s
        self.seconds_per_byte = seconds_per_byte
        self.now_s = 0.0
        self.longest_call_s = 0.0

    def start(self, tensor: torch.Tensor, name: str) -> Callable[[], None]:
        del name
        call_s = self.latency_s + tensor.numel() * tensor.element_size() * self.seconds_per_byte
        self.longest_call_s = max(self.longest_call_s, call_s)
        self.now_s += call_s
        return lambda: None

    def barrier(self) -> None:
        pass

    def minimum(self, values: torch.Tensor) -> torch.Tensor:
        return values


@pytest.mark.parametrize(
    "network", [_Affine(0.001, 1e-7), _Affine(0.0001, 1e-9), _Affine(0.02, 0.0), _Affine(0.05, 1e-6)]
)
def test_slices_stay_short_and_the_cost_exact(network: _Affine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 400 MB of gradients: nothing takes too long, and sizes that were left out follow the line."""
    monkeypatch.setattr(time, "perf_counter", lambda: network.now_s)
    sampler = CostSampler(network, largest_bytes=400_000_000, slices=25)
    while not sampler.finished:
        started_s = network.now_s
        sampler.advance()
        run_s = max(2 * network.longest_call_s, 4 * SECONDS_PER_RUN)
        assert network.now_s - started_s <= BUDGET_S / 25 + run_s
    smallest_s = network.latency_s + 1024 * network.seconds_per_byte
    assert network.longest_call_s <= max(LONGEST_CALL_S, LONGEST_CALL_RATIO * smallest_s)
    assert network.now_s <= BUDGET_S + 2 * network.longest_call_s
    cost = sampler.finish().document.cost(2)
    for size_bytes in (1024, 50_000, 3_000_000, 400_000_000):
        expected_s = network.latency_s + size_bytes * network.seconds_per_byte
        assert float(cost(size_bytes)) == pytest.approx(expected_s, rel=1e-6)


class _Interrupted(_Affine):
    """A network whose latency varies, of a host that does something else during one of the calls."""

    def __init__(self, at_call: int) -> None:
        super().__init__(0.003, 1.6e-8)
        self._left = at_call
        self._pick = random.Random(at_call)

    def start(self, tensor: torch.Tensor, name: str) -> Callable[[], None]:
        self._left -= 1
        self.now_s += 0.1 * (self._left == 0) + self._pick.uniform(0.0, 0.002)
        return super().start(tensor, name)


@pytest.mark.parametrize("at_call", range(1, 80, 3))
def test_one_interruption_does_not_end_the_sizes(at_call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """25 MB take 0.4 s; from latencies alone, the cost would be 0.004 s."""
    network = _Interrupted(at_call)
    monkeypatch.setattr(time, "perf_counter", lambda: network.now_s)
    measured = CostSampler(network, largest_bytes=25_000_000, slices=1).finish()
    assert float(measured.document.cost(2)(25_000_000)) == pytest.approx(0.404, rel=0.1)


@given(st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=12))
def test_what_falls_is_smoothed_as_the_cost_would(durations_s: list[float]) -> None:
    """Neither changes the other's result."""
    smoothed = never_falling(durations_s)
    assert smoothed == sorted(smoothed)
    np.testing.assert_allclose(smoothed, isotonic_regression(durations_s).x, rtol=1e-9)


def test_an_impossible_confidence_is_refused() -> None:
    """Certainty cannot be measured."""
    # No group exists here: the option is refused before the network is touched.
    with pytest.raises(InvalidOptions, match=r"confidence=1\.0"):
        measure_allreduce(cast("Network", None), largest_bytes=1, confidence=1.0)


@pytest.mark.parametrize("largest_bytes", [0, 1, 4, 10_000, 1 << 20, 123_456_789])
def test_sizes_reach_from_1_kib_to_beyond_the_largest(largest_bytes: int) -> None:
    """Rising, whole float32 elements, at least six, at most a factor of five apart."""
    sizes = measured_sizes(largest_bytes)
    assert len(sizes) >= 6
    assert sizes[0] == 1024
    assert sizes[-1] > largest_bytes
    assert all(size % 4 == 0 for size in sizes)
    assert all(1 < b / a <= 5 for a, b in pairwise(sizes))


def test_the_interval_of_ten_observations() -> None:
    """Binomial(10, 1/2): 2 * (1 + 10) / 1024 = 2.1 % lie outside the second and the ninth."""
    assert median_interval([float(i) for i in range(10)], 0.95) == (1.0, 8.0)


def test_the_interval_holds_the_median_as_often_as_promised() -> None:
    """Exponential durations, skewed as real ones are; 2000 repetitions at 95 %."""
    generator = np.random.default_rng(3)
    intervals = [median_interval(generator.exponential(size=25).tolist(), 0.95) for _ in range(2000)]
    hits = sum(low <= math.log(2) <= high for low, high in intervals)
    assert hits >= 0.94 * 2000


def test_gradient_bytes_counts_what_is_sent() -> None:
    """Frozen parameters are not."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 5))
    model[0].requires_grad_(False)
    assert gradient_bytes(model) == 4 * (4 * 5 + 5)


_ENDING = """
import pathlib

import torch
import torch.distributed as dist

from pace.runtime.profiler import torch_network


def gloo_threads():
    return sum("gloo" in comm.read_text() for comm in pathlib.Path("/proc/self/task").glob("*/comm"))


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))])
torch_network().barrier()
print(gloo_threads())
dist.destroy_process_group()
print(gloo_threads())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the threads' names in /proc")
def test_gloos_threads_end_with_the_process_group() -> None:
    """An optimizer built after ``init_process_group`` keeps none: at exit, they can abort the process."""
    ended = subprocess.run([sys.executable, "-c", _ENDING], capture_output=True, text=True, check=True)
    during, after = map(int, ended.stdout.split())
    assert during > 0
    assert after == 0
