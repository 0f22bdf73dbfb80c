"""The engine's disciplines, on one rank over real Gloo: what is sent when a segment is late."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

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


class _Slow(_Recording):
    """Every all-reduce takes a while."""

    def allreduce(self, segment: torch.Tensor, name: str, done: Done, after: After | None = None) -> Any:
        def later(error: BaseException | None) -> None:
            threading.Timer(0.2, done, [error]).start()

        return super().allreduce(segment, name, later, after)


class _Follower(_Recording):
    """A rank that follows over Horovod; what it submits ends when it is released."""

    sequencing = "submission"

    def __init__(self) -> None:
        super().__init__()
        self.rank = 1
        self._two = threading.Event()
        self._dones: list[Done] = []

    def allreduce(
        self,
        segment: torch.Tensor,  # noqa: ARG002
        name: str,
        done: Done,
        after: After | None = None,  # noqa: ARG002
    ) -> Any:
        self.sent.append(int(name.split(".")[-2]))
        self._dones.append(done)
        if len(self._dones) == 2:
            self._two.set()

    def wait_for_two(self) -> list[int]:
        """Return what was submitted, once there are two, though none has ended."""
        assert self._two.wait(60)
        return self.sent

    def release(self) -> None:
        """End all that was submitted."""
        for done in self._dones:
            done(None)


T = TypeVar("T", bound=_Recording)


@contextmanager
def _engine(
    discipline: Discipline, segments: list[int], tails: list[float], transport_type: type[T]
) -> Iterator[tuple[Engine, T]]:
    """An engine whose planned order is `segments` (group numbers), in a world of one rank."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        transport = transport_type()
        plan = plan_of(segments, tails, segment_bytes=4 * ELEMENTS)
        tensors = [torch.ones(ELEMENTS) for _ in segments]
        engine = Engine(plan, tensors, transport, discipline=discipline, timeout_s=60, name="test")
        try:
            yield engine, transport
        finally:
            engine.close()
            transport.close(failed=False)
    finally:
        dist.destroy_process_group()


def _round(engine: Engine, transport: _Recording, order: list[int]) -> list[int]:
    """Submit groups in this order, each when the one before is reduced; return what the round sent."""
    before = len(transport.sent)
    for group in order:
        engine.submit(group)
    for group in order:
        engine.wait(group)
    return transport.sent[before:]


def test_static_waits_for_the_plan() -> None:
    """What is ready waits for the segment whose turn it is."""
    with _engine("static", [0, 1, 0], [1.0, 2.0], _Recording) as (engine, transport):
        engine.submit(1)
        assert transport.sent == []
        engine.submit(0)
        engine.wait(0)
        engine.wait(1)
        assert transport.sent == [0, 1, 0]


def test_priority_takes_the_longest_tail_that_is_ready() -> None:
    """Whatever the plan says; both segments of a group go before a group that is needed later."""
    with _engine("priority", [0, 1, 2, 1, 0], [1.0, 3.0, 2.0], _Recording) as (engine, transport):
        engine.submit(0)
        engine.wait(0)
        assert sorted(_round(engine, transport, [1, 2])) == [1, 1, 2]
        assert transport.sent[:2] == [0, 0]


@pytest.mark.races_with_machine(reason="three groups must be submitted within the time that a segment takes")
def test_adaptive_keeps_to_the_plan_when_nothing_is_late() -> None:
    """Segments of a group are interleaved as planned, as soon as it is known how long each of them takes."""
    with _engine("adaptive", [0, 1, 0, 2], [1.0, 3.0, 2.0], _Slow) as (engine, transport):
        _round(engine, transport, [2, 1, 0])
        for _ in range(2):
            assert _round(engine, transport, [2, 1, 0]) == [0, 1, 0, 2]


def test_adaptive_lets_others_overtake_what_is_late() -> None:
    """Group 0 comes only after the others are reduced: they did not wait for it for ever."""
    with _engine("adaptive", [0, 1, 0, 2], [1.0, 3.0, 2.0], _Recording) as (engine, transport):
        for _ in range(3):
            before = len(transport.sent)
            for group in (2, 1):
                engine.submit(group)
                engine.wait(group)
            engine.submit(0)
            engine.wait(0)
            assert transport.sent[before:] == [2, 1, 0, 0]


def test_ranks_that_follow_over_horovod_submit_at_once() -> None:
    """Whatever is in flight and whoever is before it in the plan: only rank 0 chooses."""
    with _engine("adaptive", [0, 1], [1.0, 3.0], _Follower) as (engine, transport):
        engine.submit(1)
        engine.submit(0)
        assert sorted(transport.wait_for_two()) == [0, 1]
        transport.release()
        engine.wait(0)
        engine.wait(1)


@pytest.mark.parametrize("discipline", ["static", "adaptive", "priority"])
def test_every_segment_goes_out_once_a_round(discipline: Discipline) -> None:
    """Fifty rounds in changing orders of submission."""
    plan = [2, 0, 1, 0, 2, 3, 1]
    with _engine(discipline, plan, [1.0, 4.0, 2.0, 2.0], _Recording) as (engine, transport):
        for number in range(50):
            order = [(number * step) % 4 for step in range(1, 5)]
            order = sorted(range(4), key=lambda group: (order[group], group))
            assert sorted(_round(engine, transport, order)) == sorted(plan)
        assert engine.sent_segments == 50 * len(plan)
