"""The engine where tensors lie on a device that runs behind the host: who waits for what, and where."""

import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

import pace.runtime.torch
from pace.errors import CommunicationFailed
from pace.runtime.engine.engine import Engine
from pace.runtime.transports.compression import Compression, compressed
from pace.runtime.transports.transport import Discipline
from tests.runtime.engine.plans import plan_of
from tests.runtime.engine.queued_device import QueuedDevice, QueuedTransport, simulate_gpu
from tests.runtime.launch import run_ranks
from tests.runtime.logs import captured_events
from tests.runtime.loops.user_loops import LOOPS, run_loop, run_plainly
from tests.runtime.training import Case, difference, equal_bits, train_case, train_plainly

ELEMENTS = 4


class _Bench:
    """An engine over a queued device; group g's buffer is `buffers[g]`, needed first when g is small."""

    def __init__(
        self,
        discipline: Discipline,
        num_groups: int,
        *,
        segments: int = 1,
        knows_moments: bool = True,
        wire: Compression = "none",
    ) -> None:
        self.device = QueuedDevice()
        self.transport = QueuedTransport(self.device, knows_moments=knows_moments)
        self.buffers = [torch.zeros(segments * ELEMENTS) for _ in range(num_groups)]
        order = [group for group in reversed(range(num_groups)) for _ in range(segments)]
        tails = [float(num_groups - group) for group in range(num_groups)]
        plan = plan_of(order, tails, segment_bytes=4 * ELEMENTS)
        starts = [segment.offset_bytes // 4 for segment in plan.segments]
        tensors = [
            self.buffers[group][start : start + ELEMENTS] for group, start in zip(order, starts, strict=True)
        ]
        self.engine = Engine(
            plan,
            tensors,
            compressed(self.transport, wire),  # type: ignore[arg-type]  # its device is a narrower one
            discipline=discipline,
            timeout_s=60,
            name="bench",
        )

    def fill(self, group: int, value: float) -> None:
        self.device.run(lambda: self.buffers[group].fill_(value))

    def read(self, group: int, into: list[list[float]]) -> None:
        self.device.run(lambda: into.append(self.buffers[group].tolist()))

    def hold(self, *, communication: bool = False) -> Callable[[], None]:
        """Stop a queue where it is now; returns what lets it go on."""
        gate = threading.Event()
        if communication:
            with self.device.apart():
                self.device.run(lambda: gate.wait(60))
        else:
            self.device.run(lambda: gate.wait(60))
        return gate.set

    def close(self) -> None:
        self.engine.close()
        self.transport.close(failed=self.engine.failure is not None)


@contextmanager
def _bench(*arguments: Any, **options: Any) -> Iterator[_Bench]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    bench = _Bench(*arguments, **options)
    try:
        yield bench
    finally:
        bench.close()
        dist.destroy_process_group()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(1e-3)


def test_the_device_waits_for_a_sum_and_the_host_does_not() -> None:
    """What is queued after wait() sees the sum, although wait() returns before there is one."""
    with _bench("static", 1) as bench:
        release = bench.hold(communication=True)
        seen: list[list[float]] = []
        bench.fill(0, 3.0)
        bench.engine.submit(0)
        bench.engine.wait(0)
        assert not bench.engine.done(0, 0.0)
        bench.device.run(lambda: bench.buffers[0].add_(1.0))
        bench.read(0, seen)
        assert seen == []
        release()
        bench.device.now().synchronize()
        assert seen == [[4.0] * ELEMENTS]


def test_the_host_waits_where_the_transport_knows_no_moment() -> None:
    """Gloo's sums of a GPU's tensors, and Horovod's."""
    with _bench("static", 1, knows_moments=False) as bench:
        bench.fill(0, 3.0)
        bench.engine.submit(0)
        bench.engine.wait(0)
        assert bench.engine.done(0, 0.0)


def test_no_call_begins_before_its_group_is_computed() -> None:
    """The host hands over at once; the device waits, or last round's values would be summed."""
    with _bench("static", 1) as bench:
        seen: list[list[float]] = []
        release = bench.hold()
        bench.fill(0, 3.0)
        bench.engine.submit(0)
        assert bench.transport.sent == [0]
        time.sleep(0.05)
        assert not bench.engine.done(0, 0.0)
        release()
        bench.engine.wait(0)
        bench.read(0, seen)
        bench.device.now().synchronize()
        assert seen == [[3.0] * ELEMENTS]


@pytest.mark.parametrize(("discipline", "knows_moments"), [("priority", True), ("static", False)])
def test_where_the_host_decides_nothing_is_handed_over_before_it_is_computed(
    discipline: Discipline, knows_moments: bool
) -> None:
    """If rank 0 chooses the order, or the transport queues nothing."""
    with _bench(discipline, 1, knows_moments=knows_moments) as bench:
        release = bench.hold()
        bench.fill(0, 3.0)
        bench.engine.submit(0)
        time.sleep(0.05)
        assert bench.transport.sent == []
        release()
        bench.engine.wait(0)
        _until(lambda: bench.transport.sent == [0])


def test_a_host_ahead_of_its_device_queues_all_calls_in_planned_order() -> None:
    """A later group of the plan waits for the submission of an earlier one, not for its computation."""
    with _bench("static", 3) as bench:
        release = bench.hold()
        bench.engine.submit(1)
        assert bench.transport.sent == []
        bench.engine.submit(2)
        assert bench.transport.sent == [2, 1]
        bench.engine.submit(0)
        assert bench.transport.sent == [2, 1, 0]
        for group in range(3):
            bench.engine.wait(group)
        assert not any(bench.engine.done(group, 0.0) for group in range(3))
        release()
        bench.device.now().synchronize()
        assert all(bench.engine.done(group, 60.0) for group in range(3))


def test_what_is_needed_first_but_not_computed_yet_holds_nobody_up() -> None:
    """All groups are handed over long before the device is through with them."""
    with _bench("priority", 2) as bench:
        bench.engine.submit(1)
        release = bench.hold()
        bench.engine.submit(0)
        _until(lambda: bench.transport.sent == [1])
        release()
        bench.engine.wait(0)
        assert bench.transport.sent == [1, 0]


def test_a_host_that_is_a_round_ahead_waits_before_it_hands_over_again() -> None:
    """The round before still belongs to the engine."""
    with _bench("static", 1) as bench:
        release = bench.hold(communication=True)
        bench.engine.submit(0)
        bench.engine.wait(0)
        again = threading.Thread(target=bench.engine.submit, args=(0,))
        again.start()
        time.sleep(0.05)
        assert again.is_alive()
        release()
        again.join()
        bench.engine.wait(0)
        assert bench.transport.sent == [0, 0]


def test_the_time_for_which_the_device_stood_still_is_counted() -> None:
    """In the report of the round, and in the total once the next round has begun."""
    with _bench("static", 1) as bench:
        release = bench.hold(communication=True)
        bench.engine.submit(0)
        bench.engine.wait(0)
        time.sleep(0.05)
        release()
        groups, _ = bench.engine.last_round()
        assert groups[0].waited_s > 0.01
        bench.device.now().synchronize()
        bench.engine.submit(0)
        bench.engine.wait(0)
        assert bench.engine.waited_s == groups[0].waited_s


def test_sums_are_in_full_precision_when_the_device_goes_on() -> None:
    """Widening what came in half precision is queued after the sum and before whoever waits for it."""
    with _bench("static", 1, wire="fp16") as bench:
        release = bench.hold(communication=True)
        seen: list[list[float]] = []
        bench.fill(0, 1 / 3)
        bench.engine.submit(0)
        bench.engine.wait(0)
        bench.read(0, seen)
        release()
        bench.device.now().synchronize()
        rounded = torch.tensor(1 / 3).half().float().item()
        assert seen == [[rounded] * ELEMENTS]


@pytest.mark.parametrize(
    ("discipline", "what"), [("static", "failed"), ("priority", "could not be computed")]
)
def test_what_the_device_raises_is_said_to_who_waits(discipline: Discipline, what: str) -> None:
    """A kernel that fails, noticed by the thread that waits for sums or for gradients."""
    with _bench(discipline, 2) as bench:

        def fail() -> None:
            raise RuntimeError("an illegal memory access was encountered")

        bench.device.run(fail)
        bench.engine.submit(1)
        _until(lambda: bench.engine.failure is not None)
        with pytest.raises(CommunicationFailed, match=rf"group 1 \(g1\) {what}: .*illegal"):
            bench.engine.wait(1)


def test_no_thread_is_left_behind() -> None:
    """After close() in order, and after a failure."""
    before = set(threading.enumerate())
    with _bench("static", 1) as bench:
        bench.engine.submit(0)
        bench.engine.wait(0)
    with _bench("static", 1) as bench:
        bench.engine.abandon()
    _until(lambda: set(threading.enumerate()) <= before)  # Gloo's connections close in their own time


def _train_seeds(rank: int, size: int, discipline: Discipline) -> None:
    for seed in range(3):
        _train(rank, size, discipline, seed)


def _train(rank: int, size: int, discipline: Discipline, seed: int) -> None:
    """Rounds of a pretended training loop whose host never waits of its own accord."""
    groups, rounds = 5, 20
    bench = _Bench(discipline, groups, segments=3)
    delays = random.Random(f"{seed} {rank}")
    seen: list[list[list[float]]] = [[] for _ in range(groups)]
    for number in range(rounds):
        for group in reversed(range(groups)):
            bench.device.run(lambda: time.sleep(delays.random() * 2e-3))
            bench.fill(group, 1000.0 * number + 10.0 * group + rank)
            bench.engine.submit(group)
        for group in range(groups):
            bench.engine.wait(group)
            bench.read(group, seen[group])
            bench.device.run(lambda: time.sleep(delays.random() * 1e-3))
    bench.device.now().synchronize()
    bench.close()
    for group in range(groups):
        for number in range(rounds):
            expected = sum(1000.0 * number + 10.0 * group + other for other in range(size))
            assert seen[group][number] == [expected] * 3 * ELEMENTS, (group, number)


@pytest.mark.parametrize("discipline", ["static", "adaptive", "priority"])
def test_every_round_sees_its_own_sums_on_all_ranks(discipline: Discipline) -> None:
    """Two ranks whose devices lag at random: no deadlock, and no sum of another round."""
    run_ranks(_train_seeds, 2, discipline)


def _wrap_with_one_connection(rank: int, _size: int) -> list[str]:
    simulate_gpu(rank)
    model = torch.nn.Linear(2, 2)
    with captured_events() as events:
        pace.runtime.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model).close()
    return [each["event"] for each in events if each["event"] == "pace.one_connection"]


def test_an_environment_in_which_nothing_overlaps_is_reported_once() -> None:
    """By rank 0; Megatron's users set this variable."""
    found = run_ranks(
        _wrap_with_one_connection, 2, environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, timeout_s=60
    )
    assert found == [["pace.one_connection"], []]
    assert run_ranks(_wrap_with_one_connection, 2, timeout_s=60) == [[], []]


def _run_loops(rank: int, _size: int) -> dict[str, Any]:
    simulate_gpu(rank)
    found: dict[str, Any] = {}
    for name, loop in LOOPS.items():
        try:
            found[name] = run_loop(loop, rank, "gloo")
        except Exception:
            # The other rank fails in the same loop; the loops after it still count.
            found[name] = traceback.format_exc()
    assert [thread.name for thread in threading.enumerate() if "device" in thread.name] == []
    return found


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, Any]]:
    """All loops on both ranks, in the same processes."""
    return run_ranks(_run_loops, 2, timeout_s=240)


@pytest.mark.parametrize("name", LOOPS)
def test_loops_as_users_write_them(outcomes: list[dict[str, Any]], name: str) -> None:
    """Whatever the runtime does between hooks and updates, it does over a device's moments too."""
    for outcome in outcomes:
        assert not isinstance(outcome[name], str), outcome[name]
    expected, _ = run_plainly(LOOPS[name], 2)
    assert difference(outcomes[0][name][0], expected) <= 1e-5
    assert equal_bits(outcomes[0][name][0], outcomes[1][name][0])


STEPS = 20
WAYS = [
    {"order": order, "mode": mode}
    for order in ("static", "adaptive", "priority")
    for mode in ("overlap", "barrier", "auto")
]


def _train_all_ways(rank: int, _size: int) -> Any:
    simulate_gpu(rank)
    return [train_case(rank, "gloo", Case(steps=STEPS, options=options)) for options in WAYS]


def test_orders_and_modes() -> None:
    """With mode="auto" plans change three times in these steps."""
    expected = train_plainly(Case(steps=STEPS), 2)
    for way, first, second in zip(WAYS, *run_ranks(_train_all_ways, 2), strict=True):
        assert equal_bits(first, second), way
        assert difference(first, expected) <= 1e-5, way
