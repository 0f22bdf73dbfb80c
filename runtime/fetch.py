"""Where a wrapper's plan comes from: a schedule given, one fetched by rank 0, or none."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from pace.errors import InvalidOptions, InvalidSchedule, PaceError, ScheduleMismatch
from pace.fingerprint import fingerprint
from pace.runtime.plan import GradientSize, Plan, plan_from_schedule, plan_locally
from pace.runtime.transport import Transport
from pace.schedule import Schedule, load_schedule, parse_schedule

log = structlog.get_logger("pace.runtime")


def planner(
    transport: Transport,
    *,
    schedule: Schedule | str | Path | None,
    service: str | None,
    job: str | None,
    credit_bytes: int | None,
    api_key: str | None = None,
    fetch_timeout_s: float = 10.0,
) -> Callable[[list[GradientSize]], Plan]:
    """Return what makes the plan of a model's gradients.

    A schedule that was given and does not fit is an error. One that was to be fetched and cannot be, or
    does not fit, is not: training starts with a plan computed here, and says so once.
    """
    if schedule is not None and service is not None:
        raise InvalidOptions("give a schedule or a service, not both")
    if (service is None) != (job is None):
        raise InvalidOptions("service and job go together: one says where, the other under which name")

    def make(gradients: list[GradientSize]) -> Plan:
        plan = None
        if schedule is not None:
            given = schedule if isinstance(schedule, Schedule) else load_schedule(schedule)
            plan = plan_from_schedule(given, gradients, transport.size)
        elif service is not None and job is not None:
            plan = _fetch(transport, service, job, api_key, fetch_timeout_s, gradients)
        if plan is None:
            plan = plan_locally(gradients)
        return plan if credit_bytes is None else replace(plan, credit_bytes=credit_bytes)

    return make


def _fetch(
    transport: Transport,
    service: str,
    job: str,
    api_key: str | None,
    timeout_s: float,
    gradients: list[GradientSize],
) -> Plan | None:
    payload = None
    if transport.rank == 0:
        payload = _newest(service, job, api_key, timeout_s, gradients, transport.size)
    received = transport.broadcast(payload)
    if not received:
        return None
    try:
        return plan_from_schedule(parse_schedule(received), gradients, transport.size)
    except (InvalidSchedule, ScheduleMismatch) as error:
        log.warning("pace.schedule_refused", service=service, job=job, reason=str(error))
        return None


def _newest(
    service: str, job: str, api_key: str | None, timeout_s: float, gradients: list[GradientSize], workers: int
) -> bytes:
    """Ask the service; empty when it has no schedule or gives no usable answer."""
    from pace.api.client import Client

    key = fingerprint(((g.name, g.size_bytes, g.dtype) for g in gradients), workers)
    try:
        found = Client(service, api_key=api_key, timeout_s=timeout_s).newest_schedule(job, key)
    except PaceError as error:
        log.warning("pace.service_unavailable", service=service, job=job, reason=str(error))
        return b""
    if found is None:
        log.info("pace.no_schedule_yet", service=service, job=job, fingerprint=key)
        return b""
    return found.to_json()
