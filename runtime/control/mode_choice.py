"""The choice of plan and mode: the trial of ``mode="auto"``, profiling, schedules that arrive in training.

Every rank makes the same choice after the same step. The caller changes buffers and hooks.
"""

import collections
import json
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch

from pace.runtime.control.live_search import LiveSearch, NetworkCost
from pace.runtime.control.plan_source import PlanSource
from pace.runtime.control.replanner import Replanner
from pace.runtime.control.trial import Candidate, Lap, Trial
from pace.runtime.engine.plan import Buckets, GradientSize, SendPlan, plan_plainly
from pace.runtime.engine.sharded_plan import plan_shards_locally
from pace.runtime.event_log import log
from pace.runtime.options import ShardingChoice, Tune
from pace.runtime.transports.device import clock_of
from pace.runtime.transports.transport import Transport

# Iteration times of a trial may be lower than the mean by this.
_NOISE = 0.05

Switch = Callable[[SendPlan, bool], str | None]
"""Changes to a plan, with a barrier or without. If updates cannot be sharded, it returns the reason and
changes nothing. All ranks get the same answer."""


class Choice:
    """The plan and mode that run now, and the decision after each step whether to change them.

    Parameters
    ----------
    plan
        The plan that all ranks agreed on.
    buckets
        Makes the buckets of plain operation.
    auto
        Whether to find the fastest mode in a trial.
    barrier
        Whether to wait for all gradients in ``step()``, if `auto` is False.
    per_group
        Whether updates can be applied group by group.
    sharding
        Whether updates may be, or must be, sharded.
    timeout_s
        A wait for other ranks fails after this many seconds.
    tune
        How to search for the plan during training; None to follow `plan`.

    Attributes
    ----------
    running
        The candidate that runs now.
    measured_s
        The iteration times that the last trial measured, by name; empty before its end.
    replanner
        Watches how well the plan fits, and gets a new one.
    """

    def __init__(
        self,
        plan: SendPlan,
        source: PlanSource,
        sizes: list[GradientSize],
        transport: Transport,
        model: torch.nn.Module,
        *,
        buckets: Buckets,
        auto: bool,
        barrier: bool,
        per_group: bool,
        sharding: ShardingChoice = "off",
        timeout_s: float,
        tune: Tune | None = None,
    ) -> None:
        self.measured_s: dict[str, float] = {}
        self._source = source
        self._sizes = sizes
        self._transport = transport
        self._buckets = buckets
        self._auto = auto
        self._barrier = barrier
        self._per_group = per_group
        self._sharding = sharding
        self._tune = tune
        self._network = NetworkCost(transport, sizes, model, timeout_s=timeout_s)
        self._trial: Trial | LiveSearch | None = None
        self._last_step_s: float | None = None
        self._clock = clock_of(transport.device)
        self._began: Any = None
        self._last_waited_s = 0.0
        self._intervals: collections.deque[float] = collections.deque(maxlen=50)
        self.replanner = Replanner(plan, source, sizes, transport, model, timeout_s=timeout_s)
        self._sorted = False  # whether the order is known in which gradients become ready
        # What to run after the first step or after profiling: a candidate, or a plan to be tried first.
        self._afterwards: Candidate | SendPlan = plan
        if self.replanner.state == "asking" and self.replanner.can_profile:
            self.replanner.begin_profile("there is no schedule")
            self.running = self._while_recorded()
        else:
            self.running = self._start(plan)

    @property
    def iteration_s(self) -> float | None:
        """Median of the latest iterations in seconds; None before the second."""
        latest = list(self._intervals)  # a copy, as metrics are read in another thread
        return statistics.median(latest) if latest else None

    def after_step(self, number: int, waited_s: float, arrived: Iterable[str], switch: Switch) -> None:
        """Record a step; call `switch` if the plan or the use of a barrier changes.

        Parameters
        ----------
        number
            Number of steps taken, the same on all ranks.
        waited_s
            How long training has waited for communication since the last switch, in seconds.
        arrived
            The gradients in the order in which they became ready in the first step.
        """
        now = time.perf_counter()
        self._last_waited_s, waited_s = waited_s, waited_s - self._last_waited_s
        if self._last_step_s is not None:
            self._intervals.append(now - self._last_step_s)
            if self._trial is None:
                self.replanner.record(self._intervals[-1], waited_s)
            elif self._began is not None:
                self._take(Lap(self._clock, self._began, self._clock.now()), switch)
        untried = not self._sorted and self.running.name == "plain"
        if untried:
            self._sort(arrived)
        if self.replanner.state == "profiling":
            if self.replanner.end_profile():
                self._resume(switch)
        elif untried:
            self._resume(switch)
        elif (news := self._news(number)) == "profile":
            self._afterwards = self.running
            self._change(self._while_recorded(), switch)
            self.replanner.begin_profile("training drifted")
        elif news is not None:
            self._say("pace.schedule_adopted", round=number, **self._source.promise)
            self._trial = None
            self._change(self._start(news), switch)
        # The time spent here is not part of the next iteration.
        self._last_step_s = time.perf_counter()
        self._began = None if self._trial is None else self._clock.now()

    def _news(self, number: int) -> SendPlan | Literal["profile"] | None:
        return self.replanner.news(number, settled=self._trial is None, plain_s=self.measured_s.get("plain"))

    def close(self, *, failed: bool) -> None:
        """Stop asking for schedules, and profiling; log if a trial has not ended, unless training failed."""
        if not failed and (self._trial is not None or (self.running.name == "plain" and not self._sorted)):
            self._say(
                "pace.ended_in_trial",
                mode=self.running.name,
                reason="not all modes or plans were timed yet: train for more steps",
            )
        self.replanner.close(failed=failed)

    def _take(self, lap: Lap, switch: Switch) -> None:
        """Record an iteration in the trial."""
        assert self._trial is not None
        if self._trial.record(lap):
            self._change(self._trial.current, switch)
            if self._trial.winner is not None:
                measured, self._trial = self._trial.measured, None
                self.measured_s = {name: each.cost for name, each in measured.items()}
                if self.running.name == "plain":
                    self.replanner.rest()
                gain = self.measured_s["plain"] / self.measured_s[self.running.name]
                self._say(
                    "pace.mode_chosen",
                    mode=self.running.name,
                    measured_s=self.measured_s,
                    deviation_s={name: each.deviation for name, each in measured.items()},
                    speedup=gain,
                )
                self._doubt_profile(min(self.measured_s.values()))

    def _doubt_profile(self, measured_s: float) -> None:
        """Log if training is faster than the schedule's bound, so that its profile cannot be right."""
        bound_s = self._source.bound_s
        if bound_s is not None and measured_s < bound_s * (1 - _NOISE) and self._transport.rank == 0:
            log.warning(
                "pace.faster_than_bound",
                measured_s=measured_s,
                bound_s=bound_s,
                consequence="its profile was recorded while the machine or the network was slower: another"
                " schedule may be faster",
            )

    def _sort(self, arrived: Iterable[str]) -> None:
        """Sort gradients by when they become ready on rank 0, as DDP does after its first iteration."""
        mine = json.dumps(list(arrived)).encode() if self._transport.rank == 0 else None
        order = json.loads(self._transport.broadcast(mine))
        place = {name: -number for number, name in enumerate(order)}
        # Those that rank 0 has not used come last, so first here.
        self._sizes = sorted(self._sizes, key=lambda each: place.get(each.name, -len(order)))
        self._sorted = True

    def _plainly(self) -> Candidate:
        return Candidate(name="plain", plan=plan_plainly(self._buckets(self._sizes)), barrier=True)

    def _while_recorded(self) -> Candidate:
        """Return the candidate to run while compute is recorded; whole updates may not fit into memory."""
        if self._sharding != "on":
            return self._plainly()
        halves = self._shards_locally()
        return Candidate(name="sharded", plan=halves, barrier=False)

    def _resume(self, switch: Switch) -> None:
        """Resume training after profiling."""
        after = self._afterwards
        self._change(self._start(after) if isinstance(after, SendPlan) else after, switch)

    def _change(self, candidate: Candidate, switch: Switch) -> None:
        reason = switch(candidate.plan, candidate.barrier)
        if reason is not None:
            self._say("pace.whole_updates", reason=reason)
            self._sharding = "off"
            candidate = self._without_shards(candidate)
            switch(candidate.plan, candidate.barrier)
        self.running = candidate
        self._last_waited_s = 0.0
        self._intervals.clear()
        self.replanner.restart_window()

    def _start(self, plan: SendPlan) -> Candidate:
        """Return the first candidate of a plan: with `auto`, plain operation, for comparison."""
        if self._sharding == "on" or (plan.shards and not self._auto):
            return Candidate(name="sharded", plan=self._in_halves(plan), barrier=False)
        if not self._sorted and (self._auto or self._tune is not None):
            self._afterwards = plan
            return self._plainly()
        in_halves = plan
        if plan.shards or plan.source == "local":
            plan = self._source.make_locally(self._sizes)
        if self._tune is not None:
            self._trial = LiveSearch(
                self._tune,
                self._plainly(),
                self._sizes,
                self._transport,
                self._network,
                barrier=self._barrier or not self._per_group,
            )
            return self._trial.current
        if not self._auto:
            name = "barrier" if self._barrier else "overlap"
            return Candidate(name=name, plan=plan, barrier=self._barrier)
        candidates = [
            self._plainly(),
            Candidate(name="barrier", plan=plan, barrier=True),
        ]
        if self._per_group:
            candidates.append(Candidate(name="overlap", plan=plan, barrier=False))
        if self._sharding == "auto" and self._transport.size > 1:
            candidates.append(Candidate(name="sharded", plan=self._in_halves(in_halves), barrier=False))
        trial = Trial(candidates, self._transport)
        self._say("pace.trial", modes=[each.name for each in candidates], steps=trial.num_steps)
        self._trial = trial
        return self._trial.current

    def _without_shards(self, candidate: Candidate) -> Candidate:
        if isinstance(self._trial, Trial):
            self._trial.leave_out(candidate)
            return self._trial.current
        name = "barrier" if self._barrier else "overlap"
        return Candidate(name=name, plan=self._source.make_locally(self._sizes), barrier=self._barrier)

    def _shards_locally(self) -> SendPlan:
        bytes_of_group = self._transport.local_bytes
        return plan_shards_locally(self._sizes, self._transport.size, max_group_bytes=bytes_of_group)

    def _in_halves(self, plan: SendPlan) -> SendPlan:
        return plan if plan.shards else self._shards_locally()

    def _say(self, event: str, **values: Any) -> None:
        # All ranks know the same, so only one of them logs it.
        if self._transport.rank == 0:
            log.info(event, **values)
