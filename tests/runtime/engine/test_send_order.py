"""Which segment goes next, step by step."""

import math
import random

import pytest
import torch

from pace.runtime.engine.send_queues import SendOrder
from pace.runtime.engine.sends import GroupSend, SegmentSend, sends_of
from pace.runtime.transports.transport import Discipline, Role
from tests.runtime.engine.plans import plan_of


def _order(
    discipline: Discipline, groups: list[int], tails: list[float], role: Role = "leader"
) -> tuple[SendOrder, list[GroupSend], list[SegmentSend]]:
    """A send order whose planned order is `groups` (one number for each segment)."""
    plan = plan_of(groups, tails, segment_bytes=4)
    sends, segments = sends_of(plan, [torch.ones(1) for _ in groups], "test")
    return SendOrder(segments, discipline=discipline, role=role), sends, segments


def _enter(order: SendOrder, send: GroupSend) -> bool:
    send.unsent = len(send.segments)
    return order.enter(send)


def _drain(order: SendOrder) -> list[int]:
    taken = []
    while (segment := order.next()) is not None:
        order.take(segment)
        taken.append(segment.number)
    return taken


def test_planned_order_waits_for_whose_turn_it_is() -> None:
    """Only the group whose turn it is changes anything."""
    order, (first, second), _ = _order("static", [0, 1, 0], [1.0, 2.0], "planned")
    assert not _enter(order, second)
    assert order.next() is None
    assert order.num_waiting == 1
    assert _enter(order, first)
    assert _drain(order) == [0, 1, 2]
    assert order.num_waiting == 0


def test_the_longest_tail_goes_first() -> None:
    """By priority; of equal tails the group that is ready first, and both its segments."""
    order, sends, _ = _order("priority", [0, 1, 2, 1, 0], [2.0, 2.0, 3.0])
    for send in reversed(sends):
        assert _enter(order, send)
    assert _drain(order) == [2, 0, 4, 1, 3]


def test_a_round_ends_before_the_next_begins() -> None:
    """However long the tail of who is in the next one already."""
    order, (first, second), _ = _order("priority", [0, 1], [1.0, 9.0])
    _enter(order, second)
    assert _drain(order) == [1]
    _enter(order, second)
    _enter(order, first)
    assert _drain(order) == [0, 1]


def test_ski_rental() -> None:
    """Nothing is waited for while the price is unknown, and then as long as overtaking would take."""
    order, (_, send), (first, second) = _order("adaptive", [0, 1], [1.0, 3.0])
    _enter(order, send)
    assert order.next() is second
    assert second.expected_s == math.inf
    assert order.patience_s(second, idle=True) <= 0
    second.expected_s = 60.0
    assert order.patience_s(second, idle=False) == math.inf
    assert order.patience_s(second, idle=True) == 60.0
    assert 0 < order.patience_s(second, idle=True) < 60.0
    assert order.patience_s(first, idle=True) == 0


def test_patience_begins_anew_when_the_late_one_came() -> None:
    """What was waited for one segment does not count for the next."""
    order, (first, second), segments = _order("adaptive", [0, 1, 0], [1.0, 3.0])
    _enter(order, second)
    segments[1].expected_s = 60.0
    assert order.patience_s(segments[1], idle=True) == 60.0
    _enter(order, first)
    assert order.patience_s(segments[0], idle=True) == 0
    assert order.patience_s(segments[1], idle=True) == 60.0


def test_one_mistaken_time_changes_no_expectation() -> None:
    """Neither one too short nor one too long; a network that became slower is believed in eight rounds."""
    _, _, (segment,) = _order("adaptive", [0], [1.0])
    expected = []
    for busy_s in (0.5, 0.2, 0.21, 0.0, 0.2, 9.0, *[0.4] * 8):
        segment.note(busy_s)
        expected.append(segment.expected_s)
    assert expected[:6] == [0.5, 0.5, 0.21, 0.2, 0.2, 0.2]
    assert expected[-1] == 0.4


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("discipline", ["static", "adaptive", "priority"])
def test_every_segment_is_taken_once_a_round(discipline: Discipline, seed: int) -> None:
    """In whatever order groups come and however many are there at a time."""
    chance = random.Random(seed)
    planned = [chance.randrange(4) for _ in range(12)] + [0, 1, 2, 3]
    role: Role = "planned" if discipline == "static" else "leader"
    order, sends, _ = _order(discipline, planned, [chance.random() for _ in range(4)], role)
    for _ in range(5):
        taken = []
        for send in chance.sample(sends, 4):
            _enter(order, send)
            if chance.random() < 0.5:
                taken += _drain(order)
        taken += _drain(order)
        assert sorted(taken) == list(range(len(planned)))
        assert order.num_waiting == 0
