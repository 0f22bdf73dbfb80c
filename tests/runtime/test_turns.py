"""Which segment goes next, step by step."""

import math
import random

import pytest
import torch

from pace.runtime.engine.send_order import Turns
from pace.runtime.engine.sends import Job, Segment, jobs_of
from pace.runtime.transports.transport import Discipline, Role
from tests.runtime.plans import plan_of


def _turns(
    discipline: Discipline, groups: list[int], tails: list[float], role: Role = "leader"
) -> tuple[Turns, list[Job], list[Segment]]:
    """Turns whose planned order is `groups` (one number for each segment)."""
    plan = plan_of(groups, tails, segment_bytes=4)
    jobs, segments = jobs_of(plan, [torch.ones(1) for _ in groups], "test")
    return Turns(segments, discipline=discipline, role=role), jobs, segments


def _enter(turns: Turns, job: Job) -> bool:
    job.unsent = len(job.segments)
    return turns.enter(job)


def _drain(turns: Turns) -> list[int]:
    taken = []
    while (segment := turns.next()) is not None:
        turns.take(segment)
        taken.append(segment.number)
    return taken


def test_planned_order_waits_for_whose_turn_it_is() -> None:
    """Only the group whose turn it is changes anything."""
    turns, (first, second), _ = _turns("static", [0, 1, 0], [1.0, 2.0], "planned")
    assert not _enter(turns, second)
    assert turns.next() is None
    assert turns.num_waiting == 1
    assert _enter(turns, first)
    assert _drain(turns) == [0, 1, 2]
    assert turns.num_waiting == 0


def test_the_longest_tail_goes_first() -> None:
    """By priority; of equal tails the group that is ready first, and both its segments."""
    turns, jobs, _ = _turns("priority", [0, 1, 2, 1, 0], [2.0, 2.0, 3.0])
    for job in reversed(jobs):
        assert _enter(turns, job)
    assert _drain(turns) == [2, 0, 4, 1, 3]


def test_a_round_ends_before_the_next_begins() -> None:
    """However long the tail of who is in the next one already."""
    turns, (first, second), _ = _turns("priority", [0, 1], [1.0, 9.0])
    _enter(turns, second)
    assert _drain(turns) == [1]
    _enter(turns, second)
    _enter(turns, first)
    assert _drain(turns) == [0, 1]


def test_ski_rental() -> None:
    """Nothing is waited for while the price is unknown, and then as long as overtaking would take."""
    turns, (_, job), (first, second) = _turns("adaptive", [0, 1], [1.0, 3.0])
    _enter(turns, job)
    assert turns.next() is second
    assert second.expected_s == math.inf
    assert turns.patience_s(second, idle=True) <= 0
    second.expected_s = 60.0
    assert turns.patience_s(second, idle=False) == math.inf
    assert turns.patience_s(second, idle=True) == 60.0
    assert 0 < turns.patience_s(second, idle=True) < 60.0
    assert turns.patience_s(first, idle=True) == 0


def test_patience_begins_anew_when_the_late_one_came() -> None:
    """What was waited for one segment does not count for the next."""
    turns, (first, second), segments = _turns("adaptive", [0, 1, 0], [1.0, 3.0])
    _enter(turns, second)
    segments[1].expected_s = 60.0
    assert turns.patience_s(segments[1], idle=True) == 60.0
    _enter(turns, first)
    assert turns.patience_s(segments[0], idle=True) == 0
    assert turns.patience_s(segments[1], idle=True) == 60.0


def test_one_mistaken_time_changes_no_expectation() -> None:
    """Neither one too short nor one too long; a network that became slower is believed in eight rounds."""
    _, _, (segment,) = _turns("adaptive", [0], [1.0])
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
    order = [chance.randrange(4) for _ in range(12)] + [0, 1, 2, 3]
    role: Role = "planned" if discipline == "static" else "leader"
    turns, jobs, _ = _turns(discipline, order, [chance.random() for _ in range(4)], role)
    for _ in range(5):
        taken = []
        for job in chance.sample(jobs, 4):
            _enter(turns, job)
            if chance.random() < 0.5:
                taken += _drain(turns)
        taken += _drain(turns)
        assert sorted(taken) == list(range(len(order)))
        assert turns.num_waiting == 0
