"""Checks the arguments of all front doors and completes them from the environment.

Nothing else in the runtime reads PACE's variables.
"""

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from inspect import signature
from typing import Any, TypedDict

from pace.client.address import refuse_other_address
from pace.errors import InvalidOptions
from pace.runtime.argument_checks import is_timeout
from pace.runtime.control.live_search import tunable
from pace.runtime.control.options import WrapperOptions
from pace.runtime.control.plan_source import JobService, PlanSource
from pace.runtime.event_log import log
from pace.runtime.options import (
    Communication,
    Mode,
    Plan,
    Replanning,
    Tune,
    refuse_misplaced,
    refuse_unknown,
)
from pace.runtime.transports.transport import Transport

_REPLANNING = {
    "profile_iterations": ("PACE_PROFILE_ITERATIONS", int),
    "drift_ratio": ("PACE_DRIFT_RATIO", float),
    "drift_iterations": ("PACE_DRIFT_ITERATIONS", int),
    "interval_s": ("PACE_REPLAN_INTERVAL_S", float),
}
_VARIABLES = (
    *("PACE_URL", "PACE_JOB", "PACE_API_KEY", "PACE_CHECK"),
    *(variable for variable, _ in _REPLANNING.values()),
)


class TrainingOptions(TypedDict, total=False):
    """Arguments of every front door; see ``pace.runtime.torch.DistributedOptimizer``."""

    plan: Plan | Tune
    communication: Communication
    mode: Mode
    timeout_s: float


def connecting_timeout_s(given: TrainingOptions) -> float:
    """Return the seconds to wait for other ranks, also for an invalid time-out, of which they are told."""
    timeout_s = given.get("timeout_s")
    return timeout_s if timeout_s is not None and is_timeout(timeout_s) else WrapperOptions().timeout_s


def refuse_unknown_arguments(front_door: Callable[..., Any], given: Mapping[str, object]) -> None:
    """Refuse unknown names among the ``TrainingOptions`` of a front door.

    Raises
    ------
    InvalidOptions
        The message says what to give instead.
    """
    own = [each.name for each in signature(front_door).parameters.values() if each.kind == each.KEYWORD_ONLY]
    refuse_unknown(front_door.__name__, (*TrainingOptions.__annotations__, *own), given)


def split_options(
    front_door: Callable[..., Any], given: Mapping[str, Any]
) -> tuple[TrainingOptions, dict[str, Any]]:
    """Separate PACE's arguments from those of the framework.

    Raises
    ------
    InvalidOptions
        When one belongs into an object of ours.
    """
    own = {name: value for name, value in given.items() if name not in TrainingOptions.__annotations__}
    refuse_misplaced(front_door.__name__, own)
    ours: Any = {name: value for name, value in given.items() if name not in own}
    return ours, own


def prepare(transport: Transport, given: TrainingOptions, **own: Any) -> tuple[WrapperOptions, PlanSource]:
    """Check the arguments of a front door, and return its options and the source of its plan.

    Parameters
    ----------
    own
        Further ``WrapperOptions`` of this front door.

    Raises
    ------
    InvalidOptions
        If an argument or a variable of the environment is not valid.
    """
    options = checking(WrapperOptions(**given, **own), os.environ)
    _warn_of_one_connection(transport, os.environ)
    if transport.rank == 0:
        for name, use in misnamed(os.environ).items():
            log.warning("pace.unknown_variable", name=name, use=use)
    if isinstance(options.plan, Tune):
        if not tunable(options.plan, transport.sequencing):
            raise InvalidOptions(
                "knobs is ('credit',), but over parameter servers the operating system limits the bytes in"
                " flight: tune partition, group or order"
            )
        return options, PlanSource(transport, Plan(), JobService(), timeout_s=options.timeout_s)
    plan = options.plan
    service = JobService(
        url=plan.service or os.environ.get("PACE_URL") or None,
        job=plan.job or os.environ.get("PACE_JOB") or None,
        api_key=plan.api_key or os.environ.get("PACE_API_KEY"),
    )
    if service.url is not None:
        named = "service" if plan.service else "PACE_URL"
        refuse_other_address(named, service.url, key="Plan(api_key=...) or PACE_API_KEY")
    if plan.service is not None and service.job is None and transport.rank == 0:
        raise InvalidOptions(
            f"service is {plan.service!r} and there is no job: give Plan(job=...), or set PACE_JOB, to say"
            " under which name the service knows the schedule"
        )
    replanning = plan.replanning or read_replanning(os.environ)
    if options.mode == "check":
        replanning = replace(replanning, profile_iterations=0)  # these steps are not the job's usual ones
    source = PlanSource(
        transport,
        replace(plan, replanning=replanning),
        service,
        timeout_s=options.timeout_s,
        sharding=options.communication.sharding,
    )
    return options, source


def _warn_of_one_connection(transport: Transport, environment: Mapping[str, str]) -> None:
    if transport.device is None or transport.rank != 0:
        return
    if environment.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
        log.warning(
            "pace.one_connection",
            reason="CUDA_DEVICE_MAX_CONNECTIONS is 1, so communication and compute cannot overlap on the GPU:"
            " unset it before CUDA starts",
        )


def misnamed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that no job reads but that look like an option of one, with what to use instead.

    Other variables named ``PACE_...`` are left alone: the service and the packs have theirs.
    """
    uses = {each.name: f"plan=Plan({each.name}=...) in the script" for each in fields(Plan)}
    uses |= {option: f"{option}=... in the script" for option in TrainingOptions.__annotations__}
    uses |= {variable.removeprefix("PACE_").lower(): variable for variable in _VARIABLES}
    uses["service"] = "PACE_URL"
    found = {}
    for name in sorted(environment):
        if name.startswith("PACE_") and name not in _VARIABLES:
            likely = difflib.get_close_matches(name.removeprefix("PACE_").lower(), uses, 1, 0.8)
            if likely:
                found[name] = uses[likely[0]]
    return found


def checking(options: WrapperOptions, environment: Mapping[str, str]) -> WrapperOptions:
    """Return the options with ``mode="check"`` if PACE_CHECK is 1, except with a barrier.

    Raises
    ------
    InvalidOptions
        If PACE_CHECK is neither 0 nor 1.
    """
    value = environment.get("PACE_CHECK") or "0"
    if value not in ("0", "1"):
        raise InvalidOptions(f'PACE_CHECK is "{value}": 1 (check) or 0 is needed')
    return replace(options, mode="check") if value == "1" and options.mode != "barrier" else options


def read_replanning(environment: Mapping[str, str]) -> Replanning:
    """Read PACE_PROFILE_ITERATIONS, PACE_DRIFT_RATIO, PACE_DRIFT_ITERATIONS, PACE_REPLAN_INTERVAL_S.

    Raises
    ------
    InvalidOptions
        If one of them is not a number, or out of range.
    """
    found: dict[str, Any] = {}
    for name, (variable, kind) in _REPLANNING.items():
        value = environment.get(variable)
        if value:
            try:
                found[name] = kind(value)
            except ValueError:
                raise InvalidOptions(f'{variable} is "{value}", a number is needed') from None
    return Replanning(**found)
