"""The page of printed errors: what the papers print, transcribed, beside what this project computes.

Every number of the page is computed here. Each test returns to the instance that the page describes.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pace import Gradient, Op, Options, Profile, optimize
from pace.documents.collective_costs import AffineAllReduce
from pace.documents.throughput.fleet import Fleet
from pace.fabric.solver.aggregation import aggregate
from pace.fabric.solver.capacity import Capacities
from pace.fabric.solver.ordering import order_updates
from pace.fabric.solver.updates import Updates
from pace.simulation.tictac import TransferDag, tao
from pace.solver import one_machine
from pace.solver.one_machine import Instance
from pace.throughput.simulate import simulate_steps
from tests.pace.throughput.step_documents import MB, document
from tests.solver.flow_shop.theorems import partitioned_bound

PAGE = (Path(__file__).parents[2] / "docs/results/papers-errors.md").read_text(encoding="utf-8")


def says(*sentences: str) -> None:
    """The page has these words, whatever its line breaks."""
    words = " ".join(PAGE.split())
    for sentence in sentences:
        assert sentence in words, sentence


def test_the_window_has_paths_without_all_reduces() -> None:
    """PACE, Theorem 1: a (1 s) -> its all-reduce (1 s) -> b (1 s), and a -> c (10 s)."""
    profile = Profile(
        name="a path beside the all-reduce",
        workers=2,
        ops=(
            Op(name="a", duration_s=1),
            Op(name="b", duration_s=1, deps=("a",), waits_for=("g",)),
            Op(name="c", duration_s=10, deps=("a",)),
        ),
        gradients=(Gradient(name="g", size_bytes=1, dtype="uint8", producer="a"),),
        allreduce=AffineAllReduce(latency_s=0.0, seconds_per_byte=1.0),
    )
    schedule = optimize(profile, Options(fusion="none"))
    ((group,), (sent,)) = schedule.groups, schedule.transfers
    assert sent.end_s + group.tail_s == 3
    assert schedule.predicted.iteration_s == 11
    says("the window is 11 s", "As printed it is 3 s")


def test_slots_begin_where_they_end() -> None:
    """PACE, equations (4) and (7): ready at 1, one slot, a tail of 1."""
    solution = one_machine.solve(
        Instance(ready=np.array([1.0]), processing=np.array([1.0]), tail=np.array([1.0]))
    )
    assert solution.objective == 3
    slot = 1  # the first that is not before the ready time
    assert slot + 1 == 2
    says("the window is 3 slots", "As printed it is 2")


def test_parts_lose_time_where_they_are_not_full() -> None:
    """ByteScheduler's bound: B = delta = theta = 1 and three tensors of half a part."""
    sizes = np.array([0.5, 0.5, 0.5])
    ideal, parts = sizes.sum(), np.floor(sizes).sum()
    call_s = 0.5 + 1.0
    # Push and pull: the last pull ends one call after the last push. All-reduce: one link.
    servers, ring = 4 * call_s - ideal, 3 * call_s - ideal
    assert (servers, ring) == (4.5, 3.0)
    assert (parts + 1 + 2, parts + 1) == (3, 1)
    assert partitioned_bound(ideal, sizes, 1.0, lost_s=1.0, bytes_per_s=1.0) - ideal == 6
    assert np.ceil(sizes).sum() + 1 == 4
    says(
        "4.5 s are added, where the bound says 3 s", "3 s are added, where the bound says 1 s", "6 s and 4 s"
    )


def makespan_s(transfer_s: Sequence[float], op_s: Sequence[float], order: Sequence[int]) -> float:
    """Return when the last op ends if each waits for the transfer of its number, on one device."""
    arrived = free = 0.0
    for number in order:
        arrived += transfer_s[number]
        free = max(free, arrived) + op_s[number]
    return free


def test_the_printed_comparator_has_the_opposite_sign() -> None:
    """TicTac, Algorithm 2: two transfers of 4 s, before ops of 3 and 1 s."""
    transfer_s, op_s = np.array([4.0, 4.0]), np.array([3.0, 1.0])
    ours = tao(TransferDag(transfer_s=transfer_s, op_s=op_s, waits=np.eye(2, dtype=bool)))
    assert ours.tolist() == [0.0, 1.0]

    def printed(a: int, b: int) -> bool:
        return bool(min(op_s[b], transfer_s[a]) > min(op_s[a], transfer_s[b]))

    order = [0, 1] if printed(0, 1) else [1, 0]
    assert [makespan_s(transfer_s.tolist(), op_s.tolist(), each) for each in ([0, 1], order)] == [9, 11]
    says("the ops end after 9 s", "As printed it is sent last, and they end after 11 s")


def test_a_link_is_shared_by_those_that_are_left() -> None:
    """Throughput paper, Algorithm 3.1, line 34: three workers pull 4, 8 and 8 MB over 4 MB/s."""
    ops = (("down", "downlink", 4 * MB), ("more", "downlink", 4 * MB, ("down",)))
    steps = document(ops, [[0, 0]], 4 * MB)
    fleet = Fleet(leave_s=(3.0, None, None))
    run = simulate_steps(steps, 3, fleet=fleet, steps=1, skip=0, num_recorded=1)
    assert run.op_end_s[1:, 0, 1] == pytest.approx(5.0)

    left_mb, active, now = [4.0, 8.0, 8.0], 3, 0.0
    ends = [0.0] * 3
    while any(left_mb):
        pulling = [worker for worker in range(3) if left_mb[worker] > 0]
        rate = 4.0 / active
        least = min(left_mb[worker] for worker in pulling)
        now += least / rate
        for worker in pulling:
            left_mb[worker] -= least
            if left_mb[worker] == 0:
                ends[worker] = now
                active = 1  # as printed; each worker that leaves should make it one less
    assert ends == [3, 4, 4]
    says("both end after 5 s", "As printed they end after 4 s")


def split(
    updates: Updates, order: Sequence[int], capacities: Capacities, relays: Sequence[int], direct: int
) -> tuple[float, float]:
    """Send `direct` updates directly and the others by way of relays, as Algorithm 3 does.

    Returns
    -------
    tuple of float
        When the last update is at the server or at the host that adds it to the last sum, by which the
        printed algorithm compares, and when all are at the server.
    """
    left = capacities.copy()
    server, printed_s = updates.server, 0.0
    for update in order[:direct]:
        end = left.reserve(int(updates.host[update]), server, float(updates.size[update])).end_s
        printed_s = max(printed_s, end)
    at, real_s = direct, printed_s
    for number, relay in enumerate(relays):
        members, ready_s = 0, 0.0
        while at < len(order):
            source, size = int(updates.host[order[at]]), float(updates.size[order[at]])
            end = left.finish(source, relay, size)
            if members and number < len(relays) - 1 and end > real_s:
                break
            left.reserve(source, relay, size)
            members, ready_s, at = members + 1, max(ready_s, end), at + 1
        if members:
            printed_s = max(real_s, ready_s)
            real_s = max(real_s, left.reserve(relay, server, 1.0, ready_s).end_s)
    return printed_s, real_s


def compared(up: Sequence[float], relay_up: Sequence[float]) -> tuple[float, float]:
    """Return the last commit by the printed comparison, and ours, for equal updates and these uplinks."""
    n, num_relays = len(up), len(relay_up)
    updates = Updates(size=np.ones(n), host=np.arange(n), server=n)
    network = Capacities.constant([*up, 1.0, *relay_up], [1.0] * (n + 1) + [*relay_up])
    order = order_updates(updates, network).commits
    relays = range(n + 1, n + 1 + num_relays)
    ours = aggregate(updates, order, network, relays)
    assert ours is not None
    splits = [split(updates, order, network, relays, direct) for direct in range(n + 1)]
    assert min(real_s for _, real_s in splits) == pytest.approx(ours.last_s)
    return min(splits, key=lambda each: each[0])[1], ours.last_s


def test_the_last_sum_takes_time_too() -> None:
    """MLfabric, Algorithm 3: two updates and a slow relay; 30 random batches of six and two relays."""
    slow = split(
        Updates(size=np.ones(2), host=np.arange(2), server=2),
        [0, 1],
        Capacities.constant([1.0, 1.0, 1.0, 0.25], [1.0] * 4),
        [3],
        1,
    )
    assert slow == pytest.approx((1, 5))
    later = 0
    for seed in range(30):
        draw = np.random.default_rng(seed)
        up, relay_up = draw.choice([0.1, 0.25, 0.5, 1.0], 6), draw.choice([0.25, 0.5, 1.0], 2)
        printed_s, ours_s = compared(up.tolist(), relay_up.tolist())
        later += printed_s > ours_s + 1e-9
    says("both updates are there after 2 s", "As printed they are there after 5 s", f"later in {later} of 30")


def test_the_sum_of_the_proof_ends_where_the_delay_ends() -> None:
    """MLfabric, equation 24: tau = 5, epsilon = 1 and l = 4."""
    tau, epsilon, length = 5, 1, 4

    def inner(terms: int) -> int:
        return sum(range(2, terms + 2))

    assert inner(length - tau + epsilon) == 0
    printed = length + tau - epsilon
    assert inner(printed) == printed * (printed + 3) // 2 == 44
    # The sum over all delays from tau - epsilon to tau + epsilon, with the right number of terms.
    total = sum(inner(delay - tau + epsilon) for delay in range(tau - epsilon, tau + epsilon + 1))
    assert total == epsilon * (2 * epsilon + 1) * (2 * epsilon + 5) // 3 == 7
    says("it is 0", "As printed it is 44")
