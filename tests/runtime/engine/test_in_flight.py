"""When the next segment may be handed over, beside what is in flight."""

import math
import time

import torch

from pace.runtime.engine.send_queues import InFlight
from pace.runtime.engine.sends import SegmentSend, sends_of
from tests.runtime.engine.plans import plan_of

SEGMENT_BYTES = 16
HAND_OVER_S = 1e-3


def _segments(number: int) -> list[SegmentSend]:
    plan = plan_of(list(range(number)), [1.0] * number, segment_bytes=SEGMENT_BYTES)
    return sends_of(plan, [torch.ones(1) for _ in range(number)], "test")[1]


def test_the_credit_holds_as_many_as_fit() -> None:
    """Two of a credit of two and a half; a third waits for an end, as nobody knows when that will be."""
    in_flight = InFlight(credit_bytes=5 * SEGMENT_BYTES // 2, hand_over_s=HAND_OVER_S)
    first, second, third = _segments(3)
    for segment in (first, second):
        assert in_flight.wait_s(segment) == 0
        in_flight.add(segment)
    assert in_flight.num_segments == 2
    assert in_flight.wait_s(third) == math.inf
    first.sent_s, first.done_s = 1.0, 3.0
    in_flight.remove(first)
    assert first.expected_s == 2.0
    assert in_flight.wait_s(third) == 0


def test_a_segment_beyond_the_credit_goes_alone() -> None:
    """Else it could never be sent."""
    in_flight = InFlight(credit_bytes=0, hand_over_s=HAND_OVER_S)
    assert in_flight.wait_s(_segments(1)[0]) == 0


def test_the_next_is_handed_over_just_before_the_one_in_flight_ends() -> None:
    """Not while its duration is unknown; then so long before its latest end as the transport asks for."""
    in_flight = InFlight(credit_bytes=SEGMENT_BYTES, hand_over_s=HAND_OVER_S)
    first, second, third = _segments(3)
    in_flight.add(first)
    assert in_flight.wait_s(second) == math.inf
    first.sent_s, first.at_most_s = time.perf_counter(), 60.0
    assert 50.0 < in_flight.wait_s(second) < 60.0 - HAND_OVER_S
    first.at_most_s = HAND_OVER_S
    assert in_flight.wait_s(second) <= 0
    in_flight.add(second)
    assert in_flight.wait_s(third) == math.inf  # one ahead of its time, no more


def test_the_network_is_busy_from_the_end_of_the_one_before() -> None:
    """A segment handed over early is not expected to take the time for which it waited."""
    in_flight = InFlight(credit_bytes=2 * SEGMENT_BYTES, hand_over_s=HAND_OVER_S)
    first, second = _segments(2)
    for segment in (first, second):
        segment.sent_s = 1.0
        in_flight.add(segment)
    first.done_s, second.done_s = 2.0, 2.5
    in_flight.remove(first)
    in_flight.remove(second)
    assert (first.expected_s, second.expected_s) == (1.0, 0.5)
    assert in_flight.num_segments == 0


def test_a_segment_that_compute_slows_down_now_and_then_is_not_cut_short() -> None:
    """The next one waits for as long as all but the longest of the last rounds took."""
    in_flight = InFlight(credit_bytes=SEGMENT_BYTES, hand_over_s=HAND_OVER_S)
    first, second = _segments(2)
    for busy_s in (60.0, 100.0, 40.0, 90.0, 1000.0):
        first.note(busy_s)
    assert (first.expected_s, first.at_most_s) == (60.0, 100.0)
    first.sent_s = time.perf_counter()
    in_flight.add(first)
    assert 90.0 < in_flight.wait_s(second) < 100.0 - HAND_OVER_S
