"""The page of printed errors: what the papers print, transcribed, beside what this project computes.

Each test has the instance that the page describes. Those of MLfabric, and of the prediction of
throughput, stand with the tests of their packs.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pace import Gradient, Op, Options, Profile, optimize
from pace.documents.collective_costs import AffineAllReduce
from pace.simulation.tictac import TransferDag, tao
from pace.solver import one_machine
from pace.solver.one_machine import Instance
from tests.solver.flow_shop.theorems import partitioned_bound

PAGE = (Path(__file__).parents[2] / "docs/results/papers-errors.md").read_text(encoding="utf-8")


def says(*sentences: str) -> None:
    """Check that the page has these words, whatever its line breaks."""
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
