"""Two ways over one network card: what is needed earlier goes first, whichever way it goes."""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from pace.runtime.engine.engine import Engine
from pace.runtime.engine.plan import GroupExchange
from pace.runtime.transports.gloo import GlooTransport
from pace.runtime.transports.transport import After, Done
from tests.runtime.engine.plans import plan_of

ELEMENTS = 4
WITHIN_S = 60.0


class _Held(GlooTransport):
    """Gloo, where the first group ends only when it is released."""

    num_servers = 1

    def __init__(self) -> None:
        super().__init__(timeout_s=60)
        self.sent: list[int] = []
        self.both = threading.Event()
        self.first = threading.Event()
        self._release: list[Done] = []

    def allreduce(self, segment: torch.Tensor, name: str, done: Done, after: After | None = None) -> Any:
        group = int(name.split(".")[-2])
        self.sent.append(group)
        if len(self.sent) == 2:
            self.both.set()
        if group == 0:
            self._release.append(done)
            self.first.set()
            return None
        return super().allreduce(segment, name, done, after)

    def release(self) -> None:
        """End the first group."""
        self._release.pop()(None)


@contextmanager
def _engine(
    kinds: list[GroupExchange], order: list[int], expected_s: float
) -> Iterator[tuple[Engine, _Held]]:
    """An engine in which each segment of a first group is known to take so long."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        transport = _Held()
        plan = plan_of(order, [1.0, 1.0], segment_bytes=4 * ELEMENTS)
        groups = tuple(replace(group, exchange=kind) for group, kind in zip(plan.groups, kinds, strict=True))
        tensors = [torch.ones(ELEMENTS) for _ in order]
        engine = Engine(
            replace(plan, groups=groups), tensors, transport, discipline="static", timeout_s=60, name="test"
        )
        engine._segments[order.index(0)].expected_s = expected_s
        try:
            yield engine, transport
        finally:
            engine.close()
            transport.close(failed=False)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("kinds", [["allreduce", "servers"], ["servers", "allreduce"]])
def test_what_is_needed_later_waits_for_the_other_way(kinds: list[GroupExchange]) -> None:
    """A push for an all-reduce, and an all-reduce for a push; it starts once the other one has ended."""
    with _engine(kinds, [0, 1], 1000.0) as (engine, transport):
        engine.submit(0)
        assert transport.first.wait(WITHIN_S)
        engine.submit(1)
        assert not transport.both.wait(0.3)
        transport.release()
        assert transport.both.wait(WITHIN_S)
        engine.wait(1)
        assert transport.sent == [0, 1]


@pytest.mark.parametrize(
    ("order", "expected_s", "servers"),
    [([1, 0], 1000.0, 1), ([0, 1], math.inf, 1), ([0, 1], 0.0, 1), ([0, 1], 1000.0, 0)],
    ids=["needed earlier", "nothing known", "late", "pushes leave room"],
)
def test_nobody_waits_without_need(order: list[int], expected_s: float, servers: int) -> None:
    """For what is needed later, is late, or takes nobody knows how long; nor where there is room."""
    with _engine(["allreduce", "servers"], order, expected_s) as (engine, transport):
        transport.num_servers = servers
        engine.submit(0)
        assert transport.first.wait(WITHIN_S)
        engine.submit(1)
        assert transport.both.wait(WITHIN_S)
        transport.release()
        engine.wait(0)
        engine.wait(1)
