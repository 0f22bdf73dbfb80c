"""How much slower compute runs beside traffic: the factor from times, and from iterations of two ranks."""

import itertools
import threading
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from pace.errors import InvalidOptions
from pace.runtime.capture.contention import (
    PAIRS_PER_SIZE,
    BesideTraffic,
    ContentionMeasurement,
    LoadedIteration,
    contention_of,
    slowest_of,
)
from pace.runtime.capture.recorder import num_steps, slowest_factor, spread_of
from pace.runtime.capture.self_profile import WARM_UP, SelfProfile
from pace.runtime.engine.plan import GradientSize
from pace.runtime.profiler import Contention, measure_contention, torch_network
from pace.runtime.transports.device import Clock, HostClock
from pace.runtime.transports.gloo import GlooTransport
from tests.runtime.engine.queued_device import QueuedDevice
from tests.runtime.launch import run_ranks


def pair(plain_s: float, loaded_s: float, carried_s: float) -> LoadedIteration:
    """Return a pair of iterations, beside all-reduces that take 1.25 times as long as alone."""
    return LoadedIteration(
        plain_s=plain_s,
        loaded_s=loaded_s,
        traffic_s=carried_s / 1.25,
        carried_s=carried_s,
        size_bytes=64,
        call_s=0.5,
    )


def beside(size_bytes: int, call_s: float, carried_s: float) -> LoadedIteration:
    """Return a pair of iterations beside calls of one size that fill 60 ms."""
    traffic_s = 60e-3 / carried_s * call_s
    return LoadedIteration(
        plain_s=60e-3,
        loaded_s=61e-3,
        traffic_s=traffic_s,
        carried_s=60e-3,
        size_bytes=size_bytes,
        call_s=call_s,
    )


def slowdown_of(pairs: list[LoadedIteration]) -> float:
    """Return what is found of compute."""
    return contention_of(pairs).compute_slowdown


def test_the_factor_is_what_traffic_cost_for_each_of_its_seconds() -> None:
    """A tenth of 4 s lost: 1 / 0.9. The median counts, so one late iteration does not."""
    usual = [pair(10.0, 10.4, 4.0)] * 5
    assert slowdown_of(usual) == pytest.approx(1 / 0.9)
    assert slowdown_of([*usual, pair(10.0, 13.0, 4.0)]) == pytest.approx(1 / 0.9)
    found = contention_of(usual)
    assert found.iteration_s == 10.0
    assert dict(found.added_s) == {64: pytest.approx(0.125)}
    assert contention_of(usual[:2]) == Contention()


def test_what_is_within_noise_counts_as_nothing() -> None:
    """As often faster as slower, always faster, no traffic at all, and too few or none measured."""
    assert slowdown_of([pair(10.0, 10.4, 4.0), pair(10.0, 9.8, 4.0)] * 3) == 1.0
    assert slowdown_of([pair(10.0, 9.0, 4.0)] * 5) == 1.0
    assert slowdown_of([pair(10.0, 10.4, 0.0)] * 5) == 1.0
    assert slowdown_of([]) == slowdown_of([pair(10.0, 10.4, 4.0)] * 2) == 1.0


def test_compute_that_stands_still_gives_the_largest_factor() -> None:
    """A second lost for each second of traffic, and more."""
    assert slowdown_of([pair(10.0, 14.0, 4.0)] * 5) == pytest.approx(10.0)
    assert slowdown_of([pair(10.0, 30.0, 4.0)] * 5) == pytest.approx(10.0)


def test_a_profile_gets_the_extra_time_of_calls() -> None:
    """A small one 1.2 ms more, a large one 2; smaller and larger ones as much."""
    found = contention_of([beside(1 << 18, 0.3e-3, 1.5e-3), beside(1 << 22, 3.5e-3, 5.5e-3)] * PAIRS_PER_SIZE)
    assert dict(found.added_s) == {1 << 18: pytest.approx(1.2e-3), 1 << 22: pytest.approx(2e-3)}
    assert found.load is not None
    assert found.load.extra is not None
    assert found.load.extra([1 << 10, 1 << 22, 1 << 24]).tolist() == pytest.approx([1.2e-3, 2e-3, 2e-3])
    assert Contention().load is None


def test_on_a_cpu_all_sizes_take_as_many_times_as_long() -> None:
    """A quarter more, whatever size was measured; but compute ends after 10 s, in which a call does 8 s."""
    found = contention_of([pair(10.0, 10.4, 4.0)] * 5, [(64, 0.5), (1 << 20, 2.0)])
    assert dict(found.added_s) == {
        64: pytest.approx(0.125),
        1 << 20: pytest.approx(0.5),
        1 << 26: pytest.approx(2.0),
    }


def test_extra_time_within_noise_is_none() -> None:
    """As often shorter as longer: measured, and nothing."""
    found = contention_of([beside(1 << 18, 1e-3, 1.1e-3), beside(1 << 18, 1e-3, 0.9e-3)] * 3)
    assert found.added_s == ((1 << 18, 0.0),)
    assert found.load is not None
    assert found.load.extra is None


class DeviceNetwork:
    """One rank's calls, queued on a device for communication; each takes `call_s`."""

    def __init__(self, device: QueuedDevice, call_s: float) -> None:
        self.num_workers = 1
        self.device = torch.device("cpu")
        self.clock: Clock = device
        self._queues = device
        self._call_s = call_s
        self.sizes: list[int] = []

    def start(self, tensor: torch.Tensor, name: str) -> Callable[[], object]:
        """Queue a call."""
        del name
        self.sizes.append(tensor.numel() * 4)
        with self._queues.apart():
            self._queues.run(lambda: time.sleep(self._call_s))
            summed = self._queues.now()
        return lambda: summed

    def barrier(self) -> None:
        """Nobody to wait for."""

    def minimum(self, values: torch.Tensor) -> torch.Tensor:
        """One rank's are the least."""
        return values


@pytest.mark.races_with_machine(reason="an iteration of 20 ms must not take 100 ms")
def test_on_a_device_several_sizes_are_measured_on_its_own_clock() -> None:
    """The host queues the iterations at once; calls take ten times as long as they are said to take alone."""
    device = QueuedDevice()
    network = DeviceNetwork(device, 2e-3)
    costs = [(1 << number, 0.2e-3) for number in range(12, 20)] + [(1 << 20, 10.0)]
    measurement = ContentionMeasurement(network, costs, pairs=3)
    while not measurement.finished:
        measurement.begin()
        device.run(lambda: time.sleep(20e-3))
        with measurement.aside():
            assert not any(thread.name == "pace-traffic" for thread in threading.enumerate())
            device.run(lambda: time.sleep(0.1))
        measurement.end()
    device.close()
    found = measurement.contention()
    assert [size for size, _ in found.added_s] == [1 << number for number in range(15, 20)]
    assert set(network.sizes) == {size for size, _ in found.added_s}
    assert all(added_s >= 1.5e-3 for _, added_s in found.added_s)
    assert 20e-3 <= found.iteration_s < 0.1  # type: ignore[operator]  # enough were timed


class SlowNetwork:
    """One rank's network whose all-reduces each end when the test lets them."""

    def __init__(self) -> None:
        self.num_workers = 1
        self.device = torch.device("cpu")
        self.clock: Clock = HostClock()
        self.allowed = threading.Semaphore(0)
        self.sent: list[int] = []

    def start(self, tensor: torch.Tensor, name: str) -> Callable[[], object]:
        """Wait for permission where the caller waits."""
        del name
        self.sent.append(tensor.numel() * 4)

        def wait() -> object:
            self.allowed.acquire()
            return self.clock.now()

        return wait

    def barrier(self) -> None:
        """Nobody to wait for."""

    def minimum(self, values: torch.Tensor) -> torch.Tensor:
        """One rank's are the least."""
        return values


def test_traffic_counts_until_the_caller_waits_for_it() -> None:
    """Two of three all-reduces are over when the iteration is, and a part of the third."""
    network = SlowNetwork()
    traffic = BesideTraffic(network, 64, calls=3, call_s=0.5)
    network.allowed.release(2)
    while len(network.sent) < 3:
        time.sleep(0.001)
    threading.Timer(0.05, network.allowed.release).start()
    alone_s, carried_s = traffic.finish(time.perf_counter_ns())
    assert 1.0 <= alone_s < 1.5
    assert carried_s > 0
    assert network.sent == [64, 64, 64]


def test_traffic_is_over_before_an_iteration_sends_anything_itself() -> None:
    """Collectives of two threads would reach the ranks in different orders."""
    network = SlowNetwork()
    network.allowed.release(10_000)
    measurement = ContentionMeasurement(network, [(64, 1e-4), (128, 10.0)], pairs=1)
    beside = []
    while not measurement.finished:
        measurement.begin()
        time.sleep(0.002)
        with measurement.aside():
            beside.append(sum(thread.name == "pace-traffic" for thread in threading.enumerate()))
        measurement.end()
    assert beside == [0] * 4
    # The larger ones do not fit into so short an iteration.
    assert set(network.sent) == {64}
    assert measurement.contention().compute_slowdown >= 1.0


def test_iterations_can_count_against_compute_without_a_backend() -> None:
    """Where an idle backend makes iterations longer than traffic does, the factor is of both."""
    network = SlowNetwork()
    network.allowed.release(10_000)
    measurement = ContentionMeasurement(network, [(64, 1e-4)], pairs=3)
    while not measurement.finished:
        measurement.begin()
        time.sleep(0.002)
        measurement.end()
    # An iteration takes a thousand times as long as it is said to take without a backend, then less.
    assert measurement.contention([2e-6] * 4).compute_slowdown > 1.0
    assert measurement.contention([2.0] * 4).compute_slowdown == 1.0


def _measured(rank: int, size: int) -> list[Contention | None]:
    del size
    weights = torch.full((200, 200), 0.01 * (1 + rank))

    def iterate() -> None:
        for _ in range(20):
            weights.mm(weights)

    factor = measure_contention(iterate, torch_network(), size_bytes=1 << 16, pairs=3)
    everyone: list[Contention | None] = [None, None]
    dist.all_gather_object(everyone, factor)
    return everyone


def test_all_ranks_agree_on_the_factor() -> None:
    """Over a real Gloo group; nothing is asserted of its size but that it is one."""
    first, second = run_ranks(_measured, 2, timeout_s=120)
    assert first == second
    assert first[0] == first[1]
    assert first[0].compute_slowdown >= 1.0
    assert [size for size, _ in first[0].added_s] == [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 22]


def _on_a_gpu(rank: int, _size: int) -> str:
    with FakeTensorMode():
        weights = torch.ones(4, 4, device="cuda" if rank else "cpu")

    def iterate() -> None:
        torch.mm(weights, weights)

    try:
        measure_contention(iterate, torch_network(), size_bytes=64)
    except InvalidOptions as error:
        return str(error)
    return ""


def test_compute_on_a_gpu_is_refused_over_gloo_on_all_ranks() -> None:
    """The host would time the queueing of kernels. No GPU is needed to tell what device a tensor is on."""
    first, second = run_ranks(_on_a_gpu, 2, timeout_s=120)
    assert "iterate() computes on a device of another rank" in first
    assert "iterate() computes on cuda" in second
    assert "network over NCCL" in second


def test_the_slowest_rank_counts_for_each_factor_and_size() -> None:
    """Ranks wait for one another; a size that only one of them timed counts, too."""
    found = slowest_of(
        [
            Contention(compute_slowdown=1.5, added_s=((64, 1e-3), (128, 3e-3))),
            Contention(compute_slowdown=1.25, added_s=((64, 2e-3),)),
        ]
    )
    assert found.compute_slowdown == 1.5
    assert found.added_s == ((64, 2e-3), (128, 3e-3))


def test_iterations_take_as_long_as_their_slowest_rank_compared_with_one() -> None:
    """Two ranks late in turn; a rank that is always slowest; one that is never."""
    in_turn = [[1.0, 2.0, 1.0, 2.0, 1.5], [2.0, 1.0, 2.0, 1.0, 1.5]]
    assert slowest_factor(in_turn, 0) == slowest_factor(in_turn, 1) == pytest.approx(2.0 / 1.5)
    apart = [[1.0, 1.0, 1.0], [1.5, 1.5, 1.5]]
    assert slowest_factor(apart, 1) == 1.0
    assert slowest_factor(apart, 0) == pytest.approx(1.5)


def test_the_spread_of_an_op_is_that_of_its_ends_over_the_ranks() -> None:
    """Ranks a second apart in one iteration, and three in the other; and none where ranks differ in ops."""
    first, second = {"bwd/a": [1.0, 2.0]}, {"bwd/a": [2.0, 5.0]}
    found = spread_of([first, second])
    assert found is not None
    assert list(found) == ["bwd/a"]
    assert found["bwd/a"] == pytest.approx(((1 / 2 + 9 / 2) / 2) ** 0.5)
    assert spread_of([first]) is None
    assert spread_of([first, {"bwd/b": [2.0, 5.0]}]) is None
    assert spread_of([{}, {}]) is None


def _late_in_turn(rank: int, size: int) -> float | None:
    numbers = itertools.count()

    def iterate() -> None:
        # Each pair of iterations has one late rank.
        if next(numbers) // 2 % size == rank:
            time.sleep(0.05)

    return measure_contention(iterate, torch_network(), size_bytes=1 << 12, pairs=6).iteration_s


def test_an_iteration_takes_as_long_as_its_slowest_rank() -> None:
    """Each of two ranks is late half of the time; together they always are."""
    first, second = run_ranks(_late_in_turn, 2, timeout_s=120)
    assert first == second
    assert first is not None
    assert first >= 0.05


def _profiled(rank: int, size: int) -> tuple[int, float | None]:
    del size
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    transport = GlooTransport(timeout_s=60)
    sizes = [
        GradientSize(name=name, size_bytes=parameter.numel() * 4, dtype="float32")
        for name, parameter in model.named_parameters()
    ]
    found: list[list[LoadedIteration]] = []
    with pytest.MonkeyPatch.context() as patch:

        def factors(pairs: list[LoadedIteration], costs: list[tuple[int, float]]) -> Contention:
            assert costs
            found.append(list(pairs))
            return Contention(compute_slowdown=1.0 + rank / 4, added_s=((64, 2.0 - rank / 4),))

        patch.setattr("pace.runtime.capture.contention.contention_of", factors)
        profile = SelfProfile(model, sizes, transport, iterations=12, name="small", timeout_s=60)
        steps = 0
        while True:
            optimizer.zero_grad()
            model(torch.ones(32, 64)).sum().backward()
            with profile.aside():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    dist.all_reduce(parameter.grad)
            optimizer.step()
            steps += 1
            if profile.step():
                break
        _, made = profile.finish()
    transport.close(failed=False)
    assert [len(pairs) for pairs in found] == [3]
    assert all(each.traffic_s > 0 for each in found[0])
    if made is None:
        return steps, None
    assert made.load is not None
    assert made.load.delta == ((64, 2.0),)
    assert made.load.sigma is not None
    backward = [op.name for op in made.ops if op.name.startswith("bwd/")]
    assert list(made.load.sigma) == backward
    assert all(seconds > 0 for seconds in made.load.sigma.values())
    return steps, made.compute_slowdown


def test_a_job_that_profiles_itself_finds_the_factor_of_its_slowest_rank() -> None:
    """In two iterations for each of three pairs and of one that does not count, behind those recorded."""
    (steps, slowdown), (others, nothing) = run_ranks(_profiled, 2, timeout_s=120)
    assert steps == others == num_steps(iterations=12, warmup=WARM_UP, recorded_per_plain=4) + 8
    assert slowdown == 1.25
    assert nothing is None
