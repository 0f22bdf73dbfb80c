"""Wires of one and of two communicators, worked out by hand, and compared with one another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.solver.graph.wires import FifoWire, SharedWire

TIMES = st.integers(0, 8).map(lambda quarters: quarters / 4)


def test_two_communicators_share_a_wire() -> None:
    """The first has 1 s left when the second, of 1 s, is issued: both end 2 s later."""
    wire = SharedWire(apart={1})
    wire.issue(0, 0.0, 2.0)
    wire.issue(1, 1.0, 1.0)
    assert (wire.end_of(1), wire.end_of(0)) == (3.0, 3.0)
    wire.issue(2, 3.0, 1.0)
    wire.finish()
    assert wire.free_at() == 4.0
    assert wire.start == {0: 0.0, 1: 1.0, 2: 3.0}


def test_each_communicator_is_first_in_first_out() -> None:
    """Collectives 0 and 2 run one after the other beside collective 1, which takes 4 s alone."""
    wire = SharedWire(apart={1})
    for node, seconds in ((0, 1.0), (1, 4.0), (2, 1.0)):
        wire.issue(node, 0.0, seconds)
    assert wire.end_of(2) == 4.0
    assert wire.start[2] == wire.end[0] == 2.0
    assert wire.free_at() == 6.0
    wire.finish()
    assert wire.end[1] == 6.0


@given(st.lists(st.tuples(TIMES, TIMES, st.booleans()), min_size=1, max_size=12), st.data())
def test_a_shared_wire_is_as_fast_as_one_that_is_not(
    issues: list[tuple[float, float, bool]], data: st.DataObject
) -> None:
    """Both end at the same time; if only one communicator is used, it is like the whole wire."""
    apart = {node for node, (_, _, other) in enumerate(issues) if other}
    shared, alone, single = SharedWire(apart), FifoWire(), SharedWire(frozenset())
    now = 0.0
    for node, (later, seconds, _) in enumerate(issues):
        now += later
        for wire in (shared, alone, single):
            wire.issue(node, now, seconds)
        assert max(now, shared.free_at()) == pytest.approx(max(now, alone.free_at()))
        if data.draw(st.booleans()):  # compute that waits for one of them
            now = max(now, shared.end_of(data.draw(st.integers(0, node))))
    assert shared.free_at() == pytest.approx(alone.free_at())
    for wire in (shared, single):
        wire.finish()
    assert shared.free_at() == pytest.approx(alone.free_at())
    assert single.end == pytest.approx(alone.end)
    assert single.start == pytest.approx(alone.start)
    for lane in (apart, set(range(len(issues))) - apart):
        ends = [0.0, *(shared.end[node] for node in sorted(lane))]
        for node, before in zip(sorted(lane), ends, strict=False):
            assert shared.start[node] >= before - 1e-9
            assert shared.end[node] >= shared.start[node] + issues[node][1] - 1e-9
