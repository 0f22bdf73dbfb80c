"""The engine's disciplines, on one rank over real Gloo: what is sent when a segment is late."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from pace.runtime.engine.engine import Engine
from pace.runtime.transports.gloo import GlooTransport
from pace.runtime.transports.transport import After, Discipline, Done
from tests.runtime.engine.plans import plan_of

ELEMENTS = 4


class _Recording(GlooTransport):
    """Gloo, and the groups in the order in which their segments were sent."""

    def __init__(self) -> None:
        super().__init__(timeout_s=60)
        self.sent: list[int] = []

    def allreduce(self, segment: torch.Tensor, name: str, done: Done, after: After | None = None) -> Any:
        self.sent.append(int(name.split(".")[-2]))
        return super().allreduce(segment, name, done, after)


@contextmanager
def _engine(discipline: Discipline, segments: list[int], tails: list[float]) -> Iterator[Engine]:
    """An engine whose planned order is `segments` (group numbers), in a world of one rank."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        transport = _Recording()
        plan = plan_of(segments, tails, segment_bytes=4 * ELEMENTS)
        tensors = [torch.ones(ELEMENTS) for _ in segments]
        engine = Engine(plan, tensors, transport, discipline=discipline, timeout_s=60, name="test")
        try:
            yield engine
        finally:
            engine.close()
            transport.close(failed=False)
    finally:
        dist.destroy_process_group()


def _sent(engine: Engine) -> list[int]:
    transport = engine._transport
    assert isinstance(transport, _Recording)
    return transport.sent


def _round(engine: Engine, order: list[int]) -> list[int]:
    """Submit groups in this order, each when the one before is reduced; return what the round sent."""
    before = len(_sent(engine))
    for group in order:
        engine.submit(group)
    for group in order:
        engine.wait(group)
    return _sent(engine)[before:]


def test_static_waits_for_the_plan() -> None:
    """What is ready waits for the segment whose turn it is."""
    with _engine("static", [0, 1, 0], [1.0, 2.0]) as engine:
        engine.submit(1)
        assert _sent(engine) == []
        engine.submit(0)
        engine.wait(0)
        engine.wait(1)
        assert _sent(engine) == [0, 1, 0]


def test_priority_takes_the_longest_tail_that_is_ready() -> None:
    """Whatever the plan says; both segments of a group go before a group that is needed later."""
    with _engine("priority", [0, 1, 2, 1, 0], [1.0, 3.0, 2.0]) as engine:
        engine.submit(0)
        engine.wait(0)
        assert sorted(_round(engine, [1, 2])) == [1, 1, 2]
        assert _sent(engine)[:2] == [0, 0]


def test_adaptive_keeps_to_the_plan_when_nothing_is_late() -> None:
    """Segments of a group are interleaved as planned, round after round."""
    with _engine("adaptive", [0, 1, 0, 2], [1.0, 3.0, 2.0]) as engine:
        for send in engine._group_sends:
            for segment in send.segments:
                segment.expected_s = 60.0  # so long would a segment wait for the one whose turn it is
        for _ in range(3):
            assert _round(engine, [2, 1, 0]) == [0, 1, 0, 2]


def test_adaptive_lets_others_overtake_what_is_late() -> None:
    """Group 0 comes only after the others are reduced: they did not wait for it for ever."""
    with _engine("adaptive", [0, 1, 0, 2], [1.0, 3.0, 2.0]) as engine:
        for _ in range(3):
            before = len(_sent(engine))
            for group in (2, 1):
                engine.submit(group)
                engine.wait(group)
            engine.submit(0)
            engine.wait(0)
            assert _sent(engine)[before:] == [2, 1, 0, 0]


def test_ranks_that_follow_over_horovod_submit_at_once() -> None:
    """Whatever is in flight and whoever is before it: only rank 0 chooses."""
    with _engine("adaptive", [0, 1], [1.0, 3.0]) as engine:
        first, second = engine._segments
        second.expected_s = 60.0
        engine._ahead, engine._in_flight = first, 2
        assert engine._wait_s(second) == math.inf
        engine.role = "submitter"
        assert engine._wait_s(second) == 0
        engine._in_flight = 0
        assert engine._wait_s(second) == 0
        engine.role = "leader"


def test_the_next_is_handed_over_just_before_the_one_under_way_ends() -> None:
    """Not while its duration is unknown; then so long before its expected end as the transport asks for."""
    with _engine("static", [0, 1], [1.0, 3.0]) as engine:
        first, second = engine._segments
        engine._in_flight, engine._in_flight_bytes = 1, first.size_bytes
        engine._ahead = first
        assert engine._wait_s(second) == math.inf
        first.sent_s, first.expected_s = time.perf_counter(), 60.0
        assert 50.0 < engine._wait_s(second) < 60.0 - engine._transport.hand_over_s
        first.expected_s = engine._transport.hand_over_s
        assert engine._wait_s(second) <= 0
        engine._in_flight = 2  # one ahead of it, no more
        assert engine._wait_s(second) == math.inf
        engine._in_flight = engine._in_flight_bytes = 0


@pytest.mark.parametrize("discipline", ["static", "adaptive", "priority"])
def test_every_segment_goes_out_once_a_round(discipline: Discipline) -> None:
    """Fifty rounds in changing orders of submission."""
    plan = [2, 0, 1, 0, 2, 3, 1]
    with _engine(discipline, plan, [1.0, 4.0, 2.0, 2.0]) as engine:
        for number in range(50):
            order = [(number * step) % 4 for step in range(1, 5)]
            order = sorted(range(4), key=lambda group: (order[group], group))
            assert sorted(_round(engine, order)) == sorted(plan)
        assert engine.sent_segments == 50 * len(plan)
