"""The source of a wrapper's plan: a given schedule, one that rank 0 gets from a service, or none."""

import threading
from dataclasses import dataclass, replace
from typing import Any

from pace.documents.options import Options
from pace.documents.profile import Profile, fingerprint
from pace.documents.schedule import Schedule, load_schedule, parse_schedule
from pace.errors import (
    AccessDenied,
    InvalidOptions,
    PaceError,
    RequestRefused,
    ScheduleMismatch,
    ServiceUnavailable,
)
from pace.runtime.engine.plan import GradientSize, SendPlan, plan_from_schedule, plan_locally
from pace.runtime.engine.sharded_plan import plan_from_sharded_schedule, refuse_hanging
from pace.runtime.event_log import log
from pace.runtime.options import Plan, Replanning, ShardingChoice
from pace.runtime.transports.transport import Transport

_REPORT_TIMEOUT_S = 10.0

# How long, in seconds, a job that ends waits for a report to be sent.
_REPORT_CLOSING_S = 1.0


class ReportSender:
    """Sends reports in its own thread, so that training never waits for the service.

    Every report is sent once. A report that cannot be sent is logged and lost.

    Parameters
    ----------
    service
        The service's address.
    job
        The name under which the service knows the schedule.
    """

    def __init__(self, service: str, job: str, api_key: str | None) -> None:
        self._service = service
        self._job = job
        self._api_key = api_key
        self._thread: threading.Thread | None = None

    def send(
        self,
        schedule: Schedule,
        *,
        measured_s: float,
        num_iterations: int,
        plain_s: float | None,
    ) -> None:
        """Send a report; returns at once.

        Parameters
        ----------
        measured_s
            Median of `num_iterations` iterations under the schedule on the slowest rank, in seconds.
        plain_s
            The same without the schedule; None if it was not measured.
        """
        self._thread = threading.Thread(
            target=self._send,
            args=(schedule, measured_s, num_iterations, plain_s),
            name="pace.report",
            daemon=True,
        )
        self._thread.start()

    def _send(
        self,
        schedule: Schedule,
        measured_s: float,
        num_iterations: int,
        plain_s: float | None,
    ) -> None:
        from pace.client import Client

        values = {"service": self._service, "job": self._job, "measured_iteration_s": measured_s}
        try:
            with Client(self._service, api_key=self._api_key, timeout_s=_REPORT_TIMEOUT_S) as client:
                client.send_report(schedule, self._job, measured_s, num_iterations, plain_s)
        except Exception as error:  # a report is never a reason for training to fail
            log.debug("pace.report_not_sent", reason=f"{type(error).__name__}: {error}", **values)
        else:
            log.debug("pace.report_sent", predicted_iteration_s=schedule.predicted.iteration_s, **values)

    def close(self) -> None:
        """Wait for a short time until a report is sent."""
        if self._thread is not None:
            self._thread.join(_REPORT_CLOSING_S)


# How long, in seconds, ranks wait for an answer before training. A later schedule is adopted during training.
_START_TIMEOUT_S = 2.0
_ASK_TIMEOUT_S = 10.0
_SUBMIT_TIMEOUT_S = 60.0

# What rank 0 sends in a schedule's place: the service is not asked again.
_DENIED = b"denied"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobService:
    """The service that rank 0 asks for schedules and sends reports to, if any, and the job's name."""

    url: str | None = None
    job: str | None = None
    api_key: str | None = None


class PlanSource:
    """Makes the plan of a model's gradients, and asks for a better one later.

    A given schedule that does not fit is an error. If a service has no fitting schedule or cannot be reached,
    training starts with a plan computed here, and this is logged once.

    Parameters
    ----------
    plan
        The user's settings.
    service
        The service that rank 0 asks for the newest schedule if none is given.
    timeout_s
        How long ranks wait for one another, in seconds.
    sharding
        Whether plans may be, or must be, sharded.

    Attributes
    ----------
    asks
        Whether rank 0 has a service to ask; valid on all ranks after ``accept``.
    replanning
        The settings of replanning; after ``accept`` those of rank 0.
    job
        The job's name; after ``accept`` that of rank 0.
    """

    def __init__(
        self,
        transport: Transport,
        plan: Plan,
        service: JobService,
        *,
        timeout_s: float,
        sharding: ShardingChoice = "off",
    ) -> None:
        self._transport = transport
        self._schedule = plan.schedule
        self._plan: SendPlan | None = None
        self._service = service.url
        self.job = service.job
        self.asks = plan.schedule is None and self._service is not None and self.job is not None
        self._credit_bytes = plan.credit_bytes
        self._sharding = sharding
        self._api_key = service.api_key
        # The other ranks wait for rank 0's answer at most for the time-out.
        self._start_timeout_s = min(_START_TIMEOUT_S, timeout_s / 2)
        self.replanning = plan.replanning or Replanning()
        self._gradients: list[GradientSize] = []
        self._seen: set[str] = set()
        self._unfit: set[bytes] = set()
        self._unsent_reason = ""
        self._followed: Schedule | None = None
        self._reports: ReportSender | None = None
        if transport.rank == 0 and self._service is not None and self.job is not None:
            self._reports = ReportSender(self._service, self.job, self._api_key)

    def load(self, gradients: list[GradientSize]) -> SendPlan | None:
        """Record the model, and return the plan of the given schedule; None without one.

        Raises
        ------
        InvalidOptions
            If the file cannot be read.
        InvalidSchedule
            If it does not hold a schedule.
        ScheduleMismatch
            If the schedule is for another model or number of workers.
        """
        self._gradients = gradients
        given = self._schedule
        if given is None:
            return None
        try:
            schedule = given if isinstance(given, Schedule) else load_schedule(given)
        except OSError as error:
            raise InvalidOptions(
                f"schedule is {str(given)!r}, which cannot be read: {error.strerror}"
            ) from error
        self._plan = self._with_credit(self._planned(schedule, gradients))
        self._followed = schedule
        return self._plan

    @property
    def terms(self) -> list[Any]:
        """Return the settings that ``accept`` takes on other ranks."""
        return [self.asks, self.job, self.replanning.to_json()]

    @property
    def has_schedule(self) -> bool:
        """Whether a schedule was given or found, whichever plan is in use; the same on all ranks."""
        return self._followed is not None

    @property
    def promise(self) -> dict[str, Any]:
        """Return what the log says of the schedule: its groups, its iteration time, and the bound of it."""
        assert self._followed is not None
        predicted = self._followed.predicted
        return {
            "groups": len(self._followed.groups),
            "predicted_iteration_s": predicted.iteration_s,
            "bound_s": predicted.lower_bound_s,
        }

    @property
    def bound_s(self) -> float | None:
        """The bound of the schedule that is followed, in seconds; None without one."""
        return None if self._followed is None else self._followed.predicted.lower_bound_s

    def accept(self, terms: list[Any]) -> None:
        """Use rank 0's settings, as launchers may give ranks different environments."""
        self.asks, self.job, self.replanning = terms[0], terms[1], Replanning.from_json(terms[2])

    def shard(self, sharding: ShardingChoice) -> None:
        """Set whether updates are sharded, as all ranks agreed; every rank must call it, after ``load``.

        Raises
        ------
        ScheduleMismatch
            If the given schedule is sharded, but updates cannot be.
        """
        self._sharding = sharding
        if sharding == "off" and self._plan is not None and self._plan.shards:
            raise ScheduleMismatch("the schedule is sharded, but updates cannot be sharded in this job")

    def make(self, gradients: list[GradientSize]) -> SendPlan:
        """Return the plan to start with; every rank must call this, after ``load`` and ``accept``."""
        plan = self._plan
        if plan is None and self.asks:
            mine = self._ask_at_start(gradients) if self._transport.rank == 0 else None
            found = self._transport.broadcast(mine)
            if found == _DENIED:
                self.asks, self._reports, found = False, None, b""
            plan = self.read(found, gradients)
            if plan is not None and self._transport.rank == 0:
                log.info("pace.schedule_found", **self.promise)
        elif plan is None and self._transport.rank == 0 and (self._service or self.job):
            missing = "PACE_JOB, or Plan(job=...)" if self.job is None else "PACE_URL, or Plan(service=...)"
            log.warning(
                "pace.no_service",
                missing=missing,
                service=self._service,
                job=self.job,
                consequence="the job asks for no schedule: set what is missing on rank 0",
            )
        return plan or self.make_locally(gradients)

    def make_locally(self, gradients: list[GradientSize]) -> SendPlan:
        """Return the plan without a schedule, from gradients in the reverse of the order of readiness."""
        most = self._transport.local_bytes
        return self._with_credit(
            plan_locally(gradients, max_group_bytes=most, max_segment_bytes=most, credit_bytes=2 * most)
        )

    def _ask_at_start(self, gradients: list[GradientSize]) -> bytes:
        try:
            return self._ask(gradients, self._start_timeout_s, told=True)
        except AccessDenied as error:
            log.warning(
                "pace.access_denied",
                reason=str(error),
                consequence="training goes on, and the job does not ask again",
            )
            return _DENIED
        except Exception as error:  # whatever it is, training starts
            log.warning(
                "pace.service_unavailable",
                service=self._service,
                reason=str(error),
                consequence="training goes on, and the job asks again",
            )
            return b""

    def read(self, payload: bytes, gradients: list[GradientSize]) -> SendPlan | None:
        """Convert the result of ``ask`` to a plan; None if it is empty."""
        if not payload:
            return None
        schedule = parse_schedule(payload)
        self._seen.add(schedule.profile_sha256)
        self._followed = schedule
        return self._with_credit(self._planned(schedule, gradients))

    def _planned(self, schedule: Schedule, gradients: list[GradientSize]) -> SendPlan:
        transport = self._transport
        if schedule.exchange == "sharded" and self._sharding != "off":
            return refuse_hanging(plan_from_sharded_schedule(schedule, gradients, transport.size))
        if self._sharding == "on":
            raise ScheduleMismatch(
                "the schedule is one of all-reduces, but sharding is 'on': make one with exchange \"sharded\""
            )
        return plan_from_schedule(schedule, gradients, transport.size, servers=transport.num_servers)

    def ask(self, gradients: list[GradientSize]) -> bytes:
        """Ask the service for a schedule; empty if it has no new fitting one or does not answer.

        Raises
        ------
        AccessDenied
            If the service does not accept this job's API key.
        """
        try:
            return self._ask(gradients, _ASK_TIMEOUT_S, told=False)
        except AccessDenied:
            raise
        except PaceError:
            return b""

    def _ask(self, gradients: list[GradientSize], timeout_s: float, *, told: bool) -> bytes:
        from pace.client import Client

        assert self._service is not None
        assert self.job is not None
        key = fingerprint(((g.name, g.size_bytes, g.dtype) for g in gradients), self._transport.size)
        with Client(self._service, api_key=self._api_key, timeout_s=timeout_s) as client:
            found = client.newest_schedule(self.job, key)
        if found is None:
            if told:
                log.info("pace.no_schedule_yet", service=self._service, job=self.job)
            return b""
        return b"" if found.profile_sha256 in self._seen else self._fitting(found, gradients)

    def _fitting(self, found: Schedule, gradients: list[GradientSize]) -> bytes:
        """Return a schedule's bytes; empty if it does not fit, which is logged once for each schedule."""
        document = found.to_json()
        try:
            self._planned(found, gradients)
        except ScheduleMismatch as error:
            if document not in self._unfit:
                log.warning(
                    "pace.schedule_refused",
                    service=self._service,
                    job=self.job,
                    reason=str(error),
                    consequence="training goes on without it, and the job asks again",
                )
            self._unfit.add(document)
            return b""
        return document

    def submit(self, profile: Profile) -> bytes:
        """Let the service schedule a profile; empty if it gives no usable answer.

        Raises
        ------
        InvalidProfile, InvalidOptions
            If the service refuses the profile.
        AccessDenied
            If the service does not accept this job's API key.
        """
        from pace.client import Client

        assert self._service is not None
        sent = {"service": self._service, "job": self.job, "profile_sha256": profile.sha256}
        options = None
        if self._sharding == "on":
            options = Options(exchange="sharded")
        elif self._sharding == "off" and profile.update == "global-norm":
            options = Options(exchange="allreduce")  # the service's first choice is sharded
        try:
            with Client(self._service, api_key=self._api_key, timeout_s=_SUBMIT_TIMEOUT_S) as client:
                schedule = client.create_schedule(profile, options, job=self.job)
        except AccessDenied:
            raise
        except (RequestRefused, ServiceUnavailable) as error:  # another release may accept it
            reason = str(error)
            if reason != self._unsent_reason:
                log.warning(
                    "pace.profile_not_submitted",
                    reason=reason,
                    consequence="training goes on, and the job tries again; logged once",
                    **sent,
                )
            self._unsent_reason = reason
            return b""
        log.info("pace.profile_submitted", predicted_iteration_s=schedule.predicted.iteration_s, **sent)
        return self._fitting(schedule, self._gradients)

    def report(self, measured_s: float, *, num_iterations: int, plain_s: float | None) -> None:
        """Report iteration times under the current schedule to the service, on rank 0; returns at once.

        Without a service or a name for the job, nothing is sent.

        Parameters
        ----------
        measured_s
            Median of `num_iterations` iterations on the slowest rank, in seconds.
        plain_s
            The same without the schedule; None if it was not measured.
        """
        if self._reports is not None and self._followed is not None:
            self._reports.send(
                self._followed, measured_s=measured_s, num_iterations=num_iterations, plain_s=plain_s
            )

    def close(self) -> None:
        """Wait for a short time until a report is sent."""
        if self._reports is not None:
            self._reports.close()

    def _with_credit(self, plan: SendPlan) -> SendPlan:
        return plan if self._credit_bytes is None else replace(plan, credit_bytes=self._credit_bytes)
