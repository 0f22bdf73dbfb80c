"""Realizable plans: every segment pays in full, none is recalled, all bytes go out once."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pace.solver import one_machine
from pace.solver.cost_curve import CostCurve
from pace.solver.sending import (
    Buffers,
    Sending,
    cut_as_solved,
    cut_while_sending,
    necessary_segments,
    send_in_order,
)
from tests.strategies import allreduces, eighths, properties

CURVES = st.builds(lambda document: document.cost(4), allreduces())


def buffers_of(groups: list[tuple[float, float, int, int]]) -> Buffers:
    """Return buffers of (ready, tail, elements, element bytes)."""
    ready, tail, elements, element_bytes = zip(*groups, strict=True) if groups else ((), (), (), ())
    return Buffers(
        ready=np.array(ready, dtype=np.float64),
        tail=np.array(tail, dtype=np.float64),
        elements=np.array(elements, dtype=np.int64),
        element_bytes=np.array(element_bytes, dtype=np.int64),
    )


GROUPS = st.lists(
    st.tuples(eighths(4), eighths(4), st.sampled_from([0, 1, 2, 7, 49, 100]), st.sampled_from([1, 2, 4])),
    max_size=7,
).map(buffers_of)


def assert_is_sending(buffers: Buffers, sending: Sending, cost: CostCurve) -> None:
    """One segment at a time, none early, each as long as its bytes take, every element once."""
    assert np.all(sending.elements > 0)
    assert np.all(sending.starts >= buffers.ready[sending.groups])
    assert np.all(sending.starts[1:] >= sending.ends[:-1])
    durations = cost(sending.elements * buffers.element_bytes[sending.groups])
    np.testing.assert_allclose(sending.ends - sending.starts, durations, rtol=1e-9, atol=1e-12)
    sent = np.bincount(sending.groups, weights=sending.elements, minlength=len(buffers.ready))
    np.testing.assert_array_equal(sent, buffers.elements)
    completion = buffers.ready.copy()
    np.maximum.at(completion, sending.groups, sending.ends)
    np.testing.assert_allclose(sending.objective, np.max(completion + buffers.tail, initial=0.0), rtol=1e-12)


def test_without_latency_a_cut_costs_nothing() -> None:
    """The paper's example at 1 s/byte: the segments are the oracle's pieces."""
    buffers = buffers_of([(1, 1, 4, 1), (2, 3, 2, 1), (3, 4, 1, 1)])
    sending = cut_while_sending(buffers, CostCurve.affine(0, 1), patience_s=0)
    assert sending is not None
    assert sending.groups.tolist() == [0, 1, 2, 1, 0]
    assert sending.elements.tolist() == [1, 1, 1, 1, 3]
    assert sending.objective == 9


def test_a_release_inside_an_element_is_waited_for() -> None:
    """One element of 4 s fits before the release at 6, another does not: idle to 6, 6-10, then 36 s more."""
    buffers = buffers_of([(0, 0, 10, 4), (6, 20, 1, 4)])
    sending = cut_while_sending(buffers, CostCurve.affine(0, 1), patience_s=0)
    assert sending is not None
    assert sending.starts.tolist() == [0, 6, 10]
    assert sending.objective == 46


def test_infinite_patience_never_cuts() -> None:
    """g3 from 1 to 5, then g1 to 6 and g2 to 8: max(5 + 1, 6 + 4, 8 + 3) = 11."""
    buffers = buffers_of([(1, 1, 4, 1), (2, 3, 2, 1), (3, 4, 1, 1)])
    sending = cut_while_sending(buffers, CostCurve.affine(0, 1), patience_s=np.inf)
    assert sending is not None
    assert sending.groups.tolist() == [0, 2, 1]
    assert sending.objective == 11


@given(GROUPS, CURVES, st.sampled_from([0.0, 0.25, 1.0, np.inf]), st.sampled_from([1.0, 8.0, np.inf]))
@properties(100)
def test_cut_plans_can_be_sent(
    buffers: Buffers, cost: CostCurve, patience_s: float, max_segment_bytes: float
) -> None:
    """Whatever the rule, the plan is feasible, and no segment is larger than asked for or one element."""
    sending = cut_while_sending(buffers, cost, patience_s=patience_s, max_segment_bytes=max_segment_bytes)
    if sending is None:
        return
    assert_is_sending(buffers, sending, cost)
    size = buffers.element_bytes[sending.groups]
    assert np.all(sending.elements * size <= np.maximum(max_segment_bytes, size))


@given(GROUPS, CURVES, st.sampled_from([1.0, 3.0, 8.0]))
@properties(50)
def test_infinite_patience_cuts_no_more_than_it_must(
    buffers: Buffers, cost: CostCurve, max_segment_bytes: float
) -> None:
    """However small the segments, there is a plan, of the largest that are allowed."""
    sending = cut_while_sending(buffers, cost, patience_s=np.inf, max_segment_bytes=max_segment_bytes)
    assert sending is not None
    sizes = [max(int(max_segment_bytes // size), 1) for size in buffers.element_bytes.tolist()]
    pieces = zip(buffers.elements.tolist(), sizes, strict=True)
    assert len(sending.groups) == sum(math.ceil(elements / most) for elements, most in pieces)
    necessary = necessary_segments(buffers.elements, buffers.element_bytes, max_segment_bytes)
    assert len(sending.groups) == necessary


@given(GROUPS, CURVES)
@properties(50)
def test_infinite_patience_always_gives_a_plan_of_whole_groups(buffers: Buffers, cost: CostCurve) -> None:
    """There is at least one candidate, however small the room for segments."""
    sending = cut_while_sending(buffers, cost, patience_s=np.inf)
    assert sending is not None
    assert sorted(sending.groups.tolist()) == np.flatnonzero(buffers.elements).tolist()


@given(GROUPS, CURVES, st.sampled_from([0.1, 0.25, 1.0, 50.0]))
@properties(100)
def test_slots_become_elements_in_proportion(buffers: Buffers, cost: CostCurve, slot_s: float) -> None:
    """Every element is in one piece, and no slot is left without one where there are enough elements."""
    instance = buffers.instance(cost).in_slots(slot_s)
    solution = one_machine.solve(instance)
    kept, elements = cut_as_solved(buffers, solution)
    groups = solution.jobs[kept]
    lengths = (solution.ends - solution.starts)[kept]
    assert np.all(elements > 0)
    sent = np.bincount(groups, weights=elements, minlength=len(buffers.ready))
    slots = np.bincount(groups, weights=lengths, minlength=len(buffers.ready))
    served = instance.processing > 0
    np.testing.assert_array_equal(sent[served], buffers.elements[served])
    enough = buffers.elements >= instance.processing
    np.testing.assert_array_equal(slots[served & enough], instance.processing[served & enough])


def test_as_many_elements_as_slots() -> None:
    """49 elements over 49 slots, one slot each before every preemption: 49 * (1 / 49) is less than 1."""
    groups = [(0.0, 0.0, 49, 1)] + [(float(at), 1.0, 1, 1) for at in range(1, 97, 2)]
    buffers = buffers_of(groups)
    solution = one_machine.solve(buffers.instance(CostCurve.affine(0, 1)).in_slots(1.0))
    kept, elements = cut_as_solved(buffers, solution)
    assert len(kept) == len(solution.jobs)
    assert set(elements.tolist()) == {1}


@given(GROUPS, CURVES)
@properties(40)
def test_sending_in_order_keeps_the_order(buffers: Buffers, cost: CostCurve) -> None:
    """First in the list, first on the network, and never before it is ready."""
    groups = np.flatnonzero(buffers.elements)[::-1]
    sending = send_in_order(buffers, groups, buffers.elements[groups], cost)
    assert sending.groups.tolist() == groups.tolist()
    assert_is_sending(buffers, sending, cost)


@given(GROUPS, CURVES, st.sampled_from([0.0, 1.0]), st.sampled_from([17.0, 50.0, np.inf]))
@properties(100)
def test_segments_of_16_bytes_and_more_begin_at_aligned_places(
    buffers: Buffers, cost: CostCurve, patience_s: float, max_segment_bytes: float
) -> None:
    """Every segment but a group's last carries a multiple of 16 bytes."""
    sending = cut_while_sending(buffers, cost, patience_s=patience_s, max_segment_bytes=max_segment_bytes)
    if sending is None:
        return
    sizes = sending.elements * buffers.element_bytes[sending.groups]
    for group in range(len(buffers.ready)):
        own = sizes[sending.groups == group][:-1]
        assert np.all((own % 16 == 0) | (own < 16))
