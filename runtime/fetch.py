"""Where a wrapper's plan comes from: a schedule given, one fetched by rank 0, or none."""

import json
import os
from dataclasses import replace
from pathlib import Path

import structlog

from pace.errors import InvalidOptions, InvalidSchedule, PaceError, ScheduleMismatch, ServiceUnavailable
from pace.fingerprint import fingerprint
from pace.profile import Profile
from pace.runtime.plan import GradientSize, Plan, plan_from_schedule, plan_locally
from pace.runtime.replanning import Replanning
from pace.runtime.transport import Transport
from pace.schedule import Schedule, load_schedule, parse_schedule

_FETCH_TIMEOUT_S = 10.0
_SUBMIT_TIMEOUT_S = 60.0

log = structlog.get_logger("pace.runtime")


class PlanSource:
    """Makes the plan of a model's gradients, and asks for a better one later.

    A schedule that was given and does not fit is an error. One that was to be fetched and cannot be, or
    does not fit, is not: training starts with a plan computed here, and says so once.

    Parameters
    ----------
    schedule
        A schedule or its path.
    service, job, api_key
        Where rank 0 asks for the newest schedule; without a schedule and without `service`, the
        environment's PACE_URL, PACE_JOB and PACE_API_KEY.
    credit_bytes
        Replaces the schedule's credit.
    timeout_s
        How long ranks wait for one another.
    replanning
        When to profile; by default what the environment says.

    Attributes
    ----------
    asks
        Whether rank 0 has a service to ask; holds on all ranks, once ``make`` was called.
    replanning
        Rank 0's settings, once ``make`` was called.
    job
        The job's name; rank 0's, once ``make`` was called.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        schedule: Schedule | str | Path | None,
        service: str | None,
        job: str | None,
        credit_bytes: int | None,
        api_key: str | None = None,
        timeout_s: float = 300.0,
        replanning: Replanning | None = None,
    ) -> None:
        if schedule is not None and service is not None:
            raise InvalidOptions("give a schedule or a service, not both")
        if schedule is None and service is None and job is None:
            service, job = os.environ.get("PACE_URL"), os.environ.get("PACE_JOB")
        if (service is None) != (job is None):
            raise InvalidOptions("service and job go together: one says where, the other under which name")
        self._transport = transport
        self._schedule = schedule
        self._service = service
        self.job = job
        self._credit_bytes = credit_bytes
        self._api_key = api_key or os.environ.get("PACE_API_KEY")
        # The others wait for rank 0's answer no longer than the time-out.
        self._timeout_s = min(_FETCH_TIMEOUT_S, timeout_s / 2)
        self.asks = service is not None
        self.replanning = replanning or Replanning.from_environment()
        self._seen: set[str] = set()

    def make(self, gradients: list[GradientSize]) -> Plan:
        """Return the plan to start with; every rank must call this alike."""
        # Launchers do not give every rank the same environment: what rank 0 was told holds for all.
        mine = json.dumps([self.asks, self.job, self.replanning.to_json()]).encode()
        said = json.loads(self._transport.broadcast(mine if self._transport.rank == 0 else None))
        self.asks, self.job, self.replanning = said[0], said[1], Replanning.from_json(said[2])
        plan = None
        if self._schedule is not None:
            given = self._schedule
            schedule = given if isinstance(given, Schedule) else load_schedule(given)
            plan = plan_from_schedule(schedule, gradients, self._transport.size)
        elif self.asks:
            payload = self.ask(gradients, quietly=False) if self._transport.rank == 0 else None
            plan = self.read(self._transport.broadcast(payload), gradients)
        return self._with_credit(plan or plan_locally(gradients))

    def read(self, payload: bytes, gradients: list[GradientSize]) -> Plan | None:
        """Turn what ``ask`` returned into a plan; None when it is empty or unfit."""
        if not payload:
            return None
        try:
            schedule = parse_schedule(payload)
            self._seen.add(schedule.profile_sha256)
            plan = plan_from_schedule(schedule, gradients, self._transport.size)
        except (InvalidSchedule, ScheduleMismatch) as error:
            log.warning("pace.schedule_refused", service=self._service, job=self.job, reason=str(error))
            return None
        return self._with_credit(plan)

    def ask(self, gradients: list[GradientSize], *, quietly: bool = True) -> bytes:
        """Ask the service; empty when it has no schedule that was not read before, or no usable answer."""
        from pace.api.client import Client

        assert self._service is not None
        assert self.job is not None
        key = fingerprint(((g.name, g.size_bytes, g.dtype) for g in gradients), self._transport.size)
        try:
            with Client(self._service, api_key=self._api_key, timeout_s=self._timeout_s) as client:
                found = client.newest_schedule(self.job, key)
        except PaceError as error:
            if not quietly:
                log.warning("pace.service_unavailable", service=self._service, reason=str(error))
            return b""
        if found is None:
            if not quietly:
                log.info("pace.no_schedule_yet", service=self._service, job=self.job, fingerprint=key)
            return b""
        return b"" if found.profile_sha256 in self._seen else found.to_json()

    def submit(self, profile: Profile) -> bytes:
        """Have the service schedule a profile; empty when it gives no usable answer.

        Raises
        ------
        InvalidProfile, InvalidOptions
            When the service refuses the profile.
        """
        from pace.api.client import Client

        assert self._service is not None
        sent = {"service": self._service, "job": self.job, "profile_sha256": profile.sha256}
        try:
            with Client(self._service, api_key=self._api_key, timeout_s=_SUBMIT_TIMEOUT_S) as client:
                schedule = client.create_schedule(profile, job=self.job)
        except ServiceUnavailable as error:
            log.warning("pace.profile_not_submitted", reason=str(error), **sent)
            return b""
        log.info("pace.profile_submitted", predicted_iteration_s=schedule.predicted.iteration_s, **sent)
        return schedule.to_json()

    def _with_credit(self, plan: Plan) -> Plan:
        return plan if self._credit_bytes is None else replace(plan, credit_bytes=self._credit_bytes)
