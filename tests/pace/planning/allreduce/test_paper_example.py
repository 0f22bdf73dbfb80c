"""The paper's point in six operators: preemption takes a quarter off the window of first in, first out.

One device runs bwd/3, bwd/2, bwd/1 of 1 s each, then fwd/1, fwd/2, fwd/3 of 1, 2 and 1 s. Gradients g3, g2,
g1 have 4, 2 and 1 bytes; the network carries 1 byte/s and has no latency.

====  =======  =========  ==========================
      ready r  network p  tail q
====  =======  =========  ==========================
g3    1        4          fwd/3 = 1
g2    2        2          fwd/2 + fwd/3 = 3
g1    3        1          fwd/1 + fwd/2 + fwd/3 = 4
====  =======  =========  ==========================

First in, first out: g3 1-5, g2 5-7, g1 7-8. fwd/1 starts at 8, and the window ends at 8 + 4 = 12.
Preemptive: g3 1-2, g2 2-3, g1 3-4, g2 4-5, g3 5-8. fwd/1 runs 4-5, fwd/2 5-7, fwd/3 8-9: the window ends at
9 = 12 * 3/4. No schedule is faster: all three are sent after 1, take 7, and 1 s of compute follows.
"""

import numpy as np
import pytest

from pace import Options, Schedule, optimize
from pace.kinds import check
from pace.view.window import lay_out
from tests.strategies import affine, layered

PROFILE = layered([4, 2, 1], allreduce=affine(0, 1), backward_s=[1, 1, 1], forward_s=[1, 2, 1], workers=2)

ORACLES = {
    "slotted": Options(fusion="none", slot_s=1.0),
    "finer slots": Options(fusion="none", slot_s=0.25),
    "linear program": Options(fusion="none", oracle="lp", slot_s=1.0),
    "linear program, finer slots": Options(fusion="none", oracle="lp", slot_s=0.25),
}


def sent(schedule: Schedule) -> list[tuple[str, float, float]]:
    """Return (gradient, start, end) of every segment."""
    return [
        (schedule.groups[segment.group].tensors[0], segment.start_s, segment.end_s)
        for segment in schedule.transfers
    ]


def first_in_first_out() -> tuple[list[float], float]:
    """Return when each gradient's all-reduce ends and when the window does, by the arithmetic above."""
    network = 0.0
    ends = []
    for ready, size in [(1.0, 4), (2.0, 2), (3.0, 1)]:
        network = max(network, ready) + size
        ends.append(network)
    compute = 3.0
    for arrival, duration in zip(ends[::-1], [1.0, 2.0, 1.0], strict=True):
        compute = max(compute, arrival) + duration
    return ends, compute


def test_first_in_first_out_takes_twelve_seconds() -> None:
    """y3 = 5, y2 = 7, y1 = 8, and four seconds of forward pass follow."""
    assert first_in_first_out() == ([5.0, 7.0, 8.0], 12.0)


def test_ready_times_and_tails_are_those_of_the_table() -> None:
    """From the graph of ops, not from the table."""
    assert PROFILE.timing.ready_s.tolist() == [1, 2, 3]
    assert PROFILE.timing.tail_s.tolist() == [1, 3, 4]
    assert PROFILE.timing.compute_s == 7


@pytest.mark.parametrize("options", ORACLES.values(), ids=ORACLES)
def test_preemption_takes_three_quarters_of_that(options: Options) -> None:
    """Every oracle sends the same five segments, proves 9 s by all three gradients, and is accepted."""
    schedule = optimize(PROFILE, options)
    assert sent(schedule) == [("g3", 1, 2), ("g2", 2, 3), ("g1", 3, 4), ("g2", 4, 5), ("g3", 5, 8)]
    assert [(segment.offset_bytes, segment.size_bytes) for segment in schedule.transfers] == [
        (0, 1),
        (0, 1),
        (0, 1),
        (1, 1),
        (1, 3),
    ]
    assert schedule.predicted.iteration_s == 9 == 0.75 * first_in_first_out()[1]
    assert schedule.predicted.ideal_iteration_s == 9
    assert schedule.predicted.lower_bound_s == 9
    assert schedule.predicted.gap == 0
    proof = schedule.proofs[0]
    assert proof.set == (0, 1, 2)
    assert (proof.min_ready_s, proof.total_s, proof.min_tail_s) == (1, 7, 1)
    assert proof.bound_s == 9
    assert check(PROFILE, schedule) == []


def test_continuous_time_needs_fewer_calls() -> None:
    """g2 may be sent whole without delaying any forward op that counts: 9 s in at most four calls."""
    schedule = optimize(PROFILE, Options(fusion="none"))
    assert schedule.predicted.iteration_s == schedule.predicted.ideal_iteration_s == 9
    assert len(schedule.transfers) <= 4
    assert schedule.proofs[0].bound_s == 9
    assert check(PROFILE, schedule) == []


def test_priorities_are_slots() -> None:
    """With slots of 1 s a segment's priority is the slot in which it starts."""
    schedule = optimize(PROFILE, ORACLES["linear program"])
    assert [segment.priority for segment in schedule.transfers] == [1, 2, 3, 4, 5]
    assert [segment.num_slots for segment in schedule.transfers] == [1, 1, 1, 1, 3]


def test_forward_ops_start_as_worked_out() -> None:
    """fwd/1 at 4, fwd/2 at 5, and fwd/3 at 8, when g3 has arrived."""
    times = lay_out(PROFILE, optimize(PROFILE, ORACLES["slotted"])).times
    np.testing.assert_array_equal(times.starts_s, [0, 1, 2, 4, 5, 8])
    np.testing.assert_array_equal(times.ends_s, [1, 2, 3, 5, 7, 9])


def test_the_defaults_are_no_slower_and_behind_a_barrier_it_takes_twelve() -> None:
    """Fusion has nothing to gain without latency; DDP sends whole buckets and waits for the last."""
    assert optimize(PROFILE).predicted.iteration_s == 9
    assert optimize(PROFILE, Options(framework="ddp", fusion="none")).predicted.iteration_s == 12
