"""Law 7's trial: turns there and back, so that a drifting machine favours no candidate."""

import functools
import time
from typing import Any, cast

from pace.runtime.control.trial import Candidate, Lap, Trial
from pace.runtime.engine.plan import plan_plainly
from pace.runtime.transports.device import HostClock, clock_of
from pace.runtime.transports.transport import Transport
from tests.runtime.engine.queued_device import QueuedDevice


class _Ranks:
    """Says what another rank measured, beside what this one did."""

    def __init__(self, other: bytes | None = None, device: QueuedDevice | None = None) -> None:
        self._other = other
        self.device = device

    def gather(self, payload: bytes) -> list[bytes]:
        return [payload] if self._other is None else [payload, self._other]


def _try(costs_s: dict[str, float], drift_s: float, other: bytes | None = None) -> tuple[Any, list[str]]:
    plan = plan_plainly([])
    trial = Trial(
        [Candidate(name=name, plan=plan, barrier=name != "overlap") for name in costs_s],
        cast("Transport", _Ranks(other)),
    )
    ran: list[str] = []
    num_steps = trial.num_steps
    while trial.winner is None:
        # The first iteration after a change is a hundred times as long; with overlap the second one, too.
        ran.append(trial.current.name)
        fresh = ran[-2:] != [ran[-1]] * 2 or (ran[-1] == "overlap" and ran[-3:] != [ran[-1]] * 3)
        lasted_s = (100.0 if fresh else 1.0) * costs_s[ran[-1]] + drift_s * len(ran)
        changed = trial.record(Lap(HostClock(), 0, lasted_s * 1e9))
        assert changed == (trial.winner is not None or trial.current.name != ran[-1])
    assert len(ran) == num_steps
    return trial, ran


def test_a_machine_that_slows_down_favours_nobody() -> None:
    """Each step takes a tenth longer than the one before: what is tried last wins all the same."""
    for drift_s in (-0.1, 0.1):
        for best in ("plain", "barrier", "overlap"):
            costs = {name: 10.0 - (name == best) * 0.01 for name in ("plain", "barrier", "overlap")}
            trial, ran = _try(costs, drift_s)
            assert trial.winner.name == best
            assert len(ran) == 19
    turns = [name for name, before in zip(ran, ["", *ran], strict=False) if name != before]
    assert turns == ["plain", "barrier", "overlap", "barrier", "plain"]


def test_on_a_device_an_iteration_takes_as_long_as_there() -> None:
    """The host queues all iterations equally fast; how long they take is known once the device ran them."""
    device = QueuedDevice()
    transport = cast("Transport", _Ranks(device=device))
    plan = plan_plainly([])
    trial = Trial([Candidate(name=name, plan=plan, barrier=True) for name in ("plain", "barrier")], transport)
    while trial.winner is None:
        took_s = {"plain": 0.05, "barrier": 0.01}[trial.current.name]
        began = device.now()
        device.run(functools.partial(time.sleep, took_s))
        trial.record(Lap(clock_of(device), began, device.now()))
    device.close()
    assert trial.winner.name == "barrier"
    assert trial.measured["plain"].cost >= 0.05


def test_the_slowest_rank_decides() -> None:
    """Here overlap is fastest; on another rank it is slowest by far."""
    other = b"[[1, 0], [1.5, 0], [9, 0.5]]"
    trial, _ = _try({"plain": 3.0, "barrier": 2.0, "overlap": 1.0}, 0.0, other)
    assert trial.winner.name == "barrier"
    assert trial.measured == {"plain": (3.0, 0.0), "barrier": (2.0, 0.0), "overlap": (9.0, 0.5)}
