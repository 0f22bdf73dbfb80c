"""Gets a better plan during training: by a profile if there is no schedule, or if iteration times drift.

All ranks make the same calls after the same steps and reach the same conclusions. Only rank 0 talks to the
service, in its own thread. ``mode_choice`` decides which plan runs in which mode.
"""

import json
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch

from pace.errors import AccessDenied, InvalidOptions, InvalidProfile
from pace.runtime.capture.self_profile import SelfProfile
from pace.runtime.control.drift import Drift, Typical
from pace.runtime.control.plan_source import PlanSource
from pace.runtime.engine.plan import GradientSize, SendPlan
from pace.runtime.event_log import log
from pace.runtime.transports.transport import Transport

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0

# How often, in steps, ranks exchange news (a few bytes).
STEPS_BETWEEN = 20

# The same right after a profile was submitted, when a schedule is likely to arrive; and for how many steps.
STEPS_BETWEEN_SOON = 2
STEPS_SOON = 60


class LateSchedule:
    """Polls in its own thread, at growing intervals; can also submit a profile.

    Parameters
    ----------
    ask
        Returns a schedule's bytes, or empty bytes. Must not raise if the service cannot be reached. After
        `AccessDenied` the service is not asked again.
    """

    def __init__(self, ask: Callable[[], bytes]) -> None:
        self._ask = ask
        self._submit: Callable[[], bytes] | None = None
        self._found = b""
        self._wake = threading.Event()
        self._closed = False
        self.denied = False
        """Whether the service refused the job's API key, so that it is not asked again."""
        self._thread = threading.Thread(target=self._run, name="pace.late", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        delay_s = FIRST_DELAY_S
        while True:
            if self._wake.wait(delay_s):
                self._wake.clear()
                delay_s = FIRST_DELAY_S / 2
            if self._closed:
                return
            submit = self._submit
            try:
                # Another job of this name may have submitted a profile first, so ask before submitting.
                self._found = self._ask() or (b"" if submit is None else self._hand_in(submit))
            except AccessDenied as error:
                self.denied = True
                log.warning(
                    "pace.access_denied",
                    reason=str(error),
                    consequence="training goes on, and the job does not ask again",
                )
                return
            except Exception as error:  # any error may be gone when the service is asked again
                log.warning("pace.schedule_request_failed", reason=f"{type(error).__name__}: {error}")
            if self._found:
                return
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)

    def _hand_in(self, submit: Callable[[], bytes]) -> bytes:
        try:
            return submit()
        except (InvalidProfile, InvalidOptions) as error:
            log.warning("pace.profile_refused", reason=str(error))
            self._submit = None
            return b""

    def hand_in(self, submit: Callable[[], bytes]) -> None:
        """From now on, call `submit` when asking finds no schedule; the first time at once.

        Parameters
        ----------
        submit
            Returns a schedule's bytes, or empty bytes to be called again. After `InvalidProfile` or
            `InvalidOptions` it is not called again.
        """
        self._submit = submit
        self._wake.set()

    def poll(self) -> bytes:
        """Return the schedule's bytes; empty while there is none."""
        return self._found

    def close(self) -> None:
        """Stop asking; a request in progress is left to end by itself."""
        self._closed = True
        self._wake.set()


State = Literal["none", "watching", "profiling", "submitting", "asking"]
"""The state of replanning: nothing, as there is no schedule; watching iteration times; recording iterations;
waiting for the service to schedule the profile; only asking the service for a schedule."""

# How often to try: a recorded iteration may include something else, for example an evaluation or a
# checkpoint.
ATTEMPTS = 3

# The time between reports while iteration times do not change, in seconds.
REPORT_EVERY_S = 600.0

# The byte that rank 0 sends before a schedule: whether this job made its profile.
_OWN, _FOREIGN = b"o", b"f"


class Replanner:
    """Watches how well the plan fits, records profiles, and gets new schedules.

    Parameters
    ----------
    plan
        The plan with which all ranks start.
    timeout_s
        A wait for other ranks fails after this many seconds.

    Attributes
    ----------
    num_profiles
        Number of profiles made.
    """

    def __init__(
        self,
        plan: SendPlan,
        source: PlanSource,
        sizes: list[GradientSize],
        transport: Transport,
        model: torch.nn.Module,
        *,
        timeout_s: float,
    ) -> None:
        self._source = source
        self._settings = source.replanning
        self._sizes = sizes
        self._transport = transport
        self._model = model
        self._timeout_s = timeout_s
        self._late: LateSchedule | None = None
        self._searching = False
        self._submitting = False
        self._num_awaited = 0
        self._drift: Drift | None = None
        self._drift_logged = False
        self._reported_at_s: float | None = None
        self._profile: SelfProfile | None = None
        self._failures = 0
        self._own_profiles: set[str] = set()
        self._last_change_s = time.monotonic()
        self.num_profiles = 0
        if plan.source == "schedule":
            predicted_s = plan.predicted_iteration_s if source.asks else None
            self._drift = Drift(self._settings, predicted_s)
        elif source.asks:
            self._search()

    @property
    def state(self) -> State:
        """The state of replanning."""
        if self._profile is not None:
            return "profiling"
        if self._searching:
            return "submitting" if self._submitting else "asking"
        return "none" if self._drift is None else "watching"

    @property
    def has_schedule(self) -> bool:
        """Whether there is a schedule, whichever plan is in use."""
        return self._source.has_schedule

    @property
    def drift(self) -> Drift | None:
        """The comparison of iteration times with the first ones; None without a schedule."""
        return self._drift

    @property
    def aside(self) -> Callable[[], AbstractContextManager[None]] | None:
        """Return the context in which to communicate while iterations are recorded; None otherwise."""
        return None if self._profile is None else self._aside

    def _aside(self) -> AbstractContextManager[None]:
        assert self._profile is not None
        return self._profile.aside()

    @property
    def can_profile(self) -> bool:
        """Return whether a profile can be made and would be used; the same on all ranks."""
        wanted = self._source.asks and self._settings.profile_iterations > 0 and self._transport.size > 1
        return wanted and self._failures < ATTEMPTS

    def begin_profile(self, reason: str) -> None:
        """Start to record iterations; the caller must keep communication apart from compute."""
        self._say("pace.profiling", reason=reason, iterations=self._settings.profile_iterations)
        self._last_change_s = time.monotonic()
        self._profile = SelfProfile(
            self._model,
            self._sizes,
            self._transport,
            iterations=self._settings.profile_iterations,
            name=self._source.job or "",
            timeout_s=self._timeout_s,
        )

    def end_profile(self) -> bool:
        """End a recorded iteration; return whether recording is over, with or without a profile.

        Call it with nothing in flight. If there is a profile, it is submitted to the service.
        """
        assert self._profile is not None
        if not self._profile.step():
            return False
        made, profile = self._profile.finish()
        self._profile = None
        if not made:
            self._failures += 1
            if self.can_profile:
                self.begin_profile("the last attempt failed")
            return self._profile is None
        self._failures = 0
        self.num_profiles += 1
        self._submitting = True
        self._num_awaited = 0
        self._search()
        if profile is not None:
            source = self._source
            self._own_profiles.add(profile.sha256)
            assert self._late is not None
            self._late.hand_in(lambda: source.submit(profile))
        return True

    def record(self, iteration_s: float, waited_s: float) -> None:
        """Record the seconds of an iteration under the chosen plan, and of its waits for communication."""
        if self._drift is not None:
            self._drift.record(iteration_s, waited_s)

    def rest(self) -> None:
        """Stop watching: plain operation was faster than the schedule, so there is no plan to replace."""
        self._drift = None

    def restart_window(self) -> None:
        """Begin a new window of times, because another plan than the chosen one ran."""
        if self._drift is not None:
            self._drift.restart_window()

    def news(
        self, number: int, *, settled: bool, plain_s: float | None
    ) -> SendPlan | Literal["profile"] | None:
        """Exchange news between ranks, every few steps.

        Parameters
        ----------
        number
            Number of steps taken.
        settled
            Whether the mode has been chosen.
        plain_s
            The iteration time without the schedule, in seconds; None if it was not measured.

        Returns
        -------
        SendPlan, "profile" or None
            A plan to adopt, or "profile" to make a profile; the same on all ranks.
        """
        self._num_awaited += self._submitting
        soon = self._submitting and self._num_awaited <= STEPS_SOON
        if number % (STEPS_BETWEEN_SOON if soon else STEPS_BETWEEN):
            return None
        if self._searching:
            payload = self._transport.broadcast(self._found() if self._transport.rank == 0 else None)
            if payload:
                return self._adopt(payload[1:], own=payload[:1] == _OWN)
        if self._drift is None:
            return None
        mine = {
            "typical": self._drift.typical() if settled else None,
            "rested": time.monotonic() - self._last_change_s >= self._settings.interval_s,
        }
        replies = [json.loads(each) for each in self._transport.gather(json.dumps(mine).encode())]
        self._drift.compare(
            [None if each["typical"] is None else Typical(*each["typical"]) for each in replies]
        )
        if self._transport.rank == 0:
            self._report_if_due(self._drift, plain_s)
        wanted = self._drift.drifted and not self._searching and self.can_profile
        if self._drift.drifted and not self._drift_logged:
            self._drift_logged = True
            self._say_drift(replies[0]["rested"])
        return "profile" if wanted and replies[0]["rested"] else None

    def _report_if_due(self, drift: Drift, plain_s: float | None) -> None:
        """Report the first window under a plan, a window with drift, and others at long intervals."""
        since_s = None if self._reported_at_s is None else time.monotonic() - self._reported_at_s
        shows = drift.drifted and not self._drift_logged
        if drift.latest is not None and (since_s is None or shows or since_s >= REPORT_EVERY_S):
            self._reported_at_s = time.monotonic()
            self._source.report(
                drift.latest.iteration_s, num_iterations=self._settings.drift_iterations, plain_s=plain_s
            )

    def close(self, *, failed: bool) -> None:
        """Stop asking and recording; log that a schedule was awaited, except after early failures."""
        if self.state == "profiling":
            if not failed:
                self._say(
                    "pace.ended_without_schedule", reason="no profile was made yet: train for more steps"
                )
        elif self._searching and self._late is not None and not self._late.denied:
            came = "came after the last step: the next run of this job starts with it"
            not_yet = (
                "has not come: see that the service runs; when it has logged `solved`, run the job again"
            )
            self._say(
                "pace.ended_without_schedule", reason=f"the schedule {came if self._late.poll() else not_yet}"
            )
        if self._late is not None:
            self._late.close()
        if self._profile is not None:
            self._profile.stop()
        self._source.close()

    def _search(self) -> None:
        if not self._searching and self._transport.rank == 0:
            self._late = LateSchedule(lambda: self._source.ask(self._sizes))
        self._searching = True

    def _found(self) -> bytes:
        """Return the new schedule, after a byte that tells who made its profile; empty without one."""
        assert self._late is not None
        schedule = self._late.poll()
        if not schedule:
            return b""
        own = json.loads(schedule)["profile_sha256"] in self._own_profiles
        return (_OWN if own else _FOREIGN) + schedule

    def _adopt(self, schedule: bytes, *, own: bool) -> SendPlan:
        self._searching = self._submitting = False
        self._late = None
        plan = self._source.read(schedule, self._sizes)
        assert plan is not None  # rank 0 found that it fits
        if self.num_profiles and not own and self._transport.rank == 0:
            log.warning(
                "pace.job_name_shared",
                job=self._source.job,
                consequence="another run of this name sent a profile meanwhile, and this run follows its"
                " schedule: if it is another job, or runs on other machines, give each a PACE_JOB of its own",
            )
        self._drift = Drift(self._settings, None if own else plan.predicted_iteration_s)
        self._drift_logged = False
        self._reported_at_s = None
        self._last_change_s = time.monotonic()
        return plan

    def _say_drift(self, rested: bool) -> None:
        assert self._drift is not None
        if not self._source.asks:
            consequence = "none: the schedule was given"
        elif not self.can_profile:
            consequence = "none: this job makes no profile"
        elif self._searching:
            consequence = "none yet: the last profile is not scheduled"
        else:
            left_s = self._settings.interval_s - (time.monotonic() - self._last_change_s)
            consequence = "a new profile" if rested else f"a new profile in {left_s:.0f} s"
        self._say(
            "pace.drift",
            ratio=self._drift.ratio,
            against=self._drift.against,
            reference_s=self._drift.reference.iteration_s if self._drift.reference else None,
            consequence=consequence,
        )

    def _say(self, event: str, **values: Any) -> None:
        # All ranks know the same, so only one of them logs it.
        if self._transport.rank == 0:
            log.info(event, **values)
