"""Which plan to run and in which mode: the trial of ``mode="auto"``, and schedules that come late.

Every rank reaches the same choice after the same step. Changing buffers and hooks is the caller's part.
"""

import collections
import statistics
import time
from collections.abc import Callable

import structlog

from pace.runtime.fetch import PlanSource
from pace.runtime.late import STEPS_BETWEEN, LateSchedule
from pace.runtime.plan import GradientSize, Plan, plan_plainly
from pace.runtime.transport import Transport
from pace.runtime.trial import Candidate, Trial

log = structlog.get_logger("pace.runtime")


class Choice:
    """What runs now, and what the next step may change about it.

    Parameters
    ----------
    plan
        What all ranks agreed on.
    barrier
        Whether to wait for all gradients in ``step()``, where `auto` does not decide it.
    per_group
        Whether the optimizer can be updated group by group.

    Attributes
    ----------
    running
        The way of running that is in force.
    measured_s
        What the last trial measured; empty before its end.
    """

    def __init__(
        self,
        plan: Plan,
        source: PlanSource,
        sizes: list[GradientSize],
        transport: Transport,
        *,
        auto: bool,
        barrier: bool,
        per_group: bool,
    ) -> None:
        self.measured_s: dict[str, float] = {}
        self._source = source
        self._sizes = sizes
        self._transport = transport
        self._auto = auto
        self._per_group = per_group
        self._trial: Trial | None = None
        self._late: LateSchedule | None = None
        # All ranks hold the same plan, so they agree on whether to look out for a better one.
        self._expects_schedule = source.asks and plan.source != "schedule"
        if self._expects_schedule and transport.rank == 0:
            self._late = LateSchedule(lambda: source.ask(sizes))
        self.running = self._start(plan, barrier=barrier)
        self._last_step_s: float | None = None
        self._intervals: collections.deque[float] = collections.deque(maxlen=50)

    @property
    def iteration_s(self) -> float | None:
        """Median of the latest iterations; None before the second."""
        return statistics.median(self._intervals) if self._intervals else None

    def after_step(self, number: int, switch: Callable[[Plan, bool], None]) -> None:
        """Take note of a step; calls `switch` with a plan and whether to use a barrier, if they change.

        Parameters
        ----------
        number
            How many steps there have been, the same on all ranks.
        """
        now = time.perf_counter()
        if self._last_step_s is not None:
            self._intervals.append(now - self._last_step_s)
            if self._trial is not None and self._trial.record(self._intervals[-1]):
                self._change(self._trial.current, switch)
                if self._trial.winner is not None:
                    self.measured_s = self._trial.measured_s
                    self._trial = None
                    log.info("pace.mode_chosen", mode=self.running.name, measured_s=self.measured_s)
                now = time.perf_counter()
                self._intervals.clear()
        if self._expects_schedule:
            self._look_for_schedule(number, switch)
            now = time.perf_counter()
        self._last_step_s = now

    def close(self) -> None:
        """Stop asking for schedules."""
        if self._late is not None:
            self._late.close()

    def _change(self, candidate: Candidate, switch: Callable[[Plan, bool], None]) -> None:
        switch(candidate.plan, candidate.barrier)
        self.running = candidate

    def _start(self, plan: Plan, *, barrier: bool) -> Candidate:
        """Return what to run first of a plan: with `auto`, plain operation to compare it with."""
        if not self._auto:
            return Candidate(name="barrier" if barrier else "overlap", plan=plan, barrier=barrier)
        candidates = [
            Candidate(name="plain", plan=plan_plainly(self._sizes), barrier=True),
            Candidate(name="barrier", plan=plan, barrier=True),
        ]
        if self._per_group:
            candidates.append(Candidate(name="overlap", plan=plan, barrier=False))
        self._trial = Trial(candidates, self._transport)
        return self._trial.current

    def _look_for_schedule(self, number: int, switch: Callable[[Plan, bool], None]) -> None:
        """Adopt a schedule that came late, on all ranks after the same step."""
        if self._trial is not None or number % STEPS_BETWEEN:
            return
        payload = self._transport.broadcast(self._late.poll() if self._late is not None else b"")
        if not payload:
            return
        self._expects_schedule = False
        plan = self._source.read(payload, self._sizes)
        if plan is not None:
            log.info("pace.schedule_adopted", round=number, groups=len(plan.groups))
            self._change(self._start(plan, barrier=self.running.barrier), switch)
