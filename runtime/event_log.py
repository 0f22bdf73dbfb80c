"""The runtime's log: events with their values, through Python's ``logging``, as "pace.runtime".

Nothing is set up here. In a job that does not configure ``logging``, warnings and the few lines that tell
what happens go to stderr; a job that configures it decides. What holds for all ranks is logged by rank 0;
what is about one rank (an error, a stall) is logged by that rank, with its number. Every event is declared
here or in the ``log_events.py`` of a pack: a test holds the calls to these declarations.
"""

import logging
from collections.abc import Mapping
from typing import Any

import structlog

from pace.log_events import LogEvent

TRAINING_EVENTS = {
    "pace.one_connection": LogEvent(
        "warning", "reason", "The environment keeps communication and compute from overlapping on the GPU"
    ),
    "pace.wrapped": LogEvent(
        "info", "gradients megabytes ranks mode", "Ranks agreed on the model, the arguments and the plan"
    ),
    "pace.not_attached": LogEvent(
        "info", "reason", "With Accelerate: the job has one process, so PACE does nothing"
    ),
    "pace.no_service": LogEvent(
        "warning",
        "missing service job consequence",
        "The service or the job's name is missing, so the job makes its own plan",
    ),
    "pace.unknown_variable": LogEvent(
        "warning", "name use", "A variable of the environment is ignored: `use` is what was probably meant"
    ),
    "pace.service_unavailable": LogEvent(
        "warning",
        "service reason consequence",
        "The service did not answer at the start; the job trains and asks again",
    ),
    "pace.no_schedule_yet": LogEvent("info", "service job", "The service has no schedule of this job"),
    "pace.schedule_found": LogEvent(
        "info", "groups predicted_iteration_s bound_s", "The service had a schedule of this job at the start"
    ),
    "pace.access_denied": LogEvent(
        "warning",
        "reason consequence",
        "The service refused this job's API key, or got none; the job does not ask it again",
    ),
    "pace.schedule_refused": LogEvent(
        "warning",
        "service job reason consequence",
        "The service's schedule does not fit this model or number of ranks",
    ),
    "pace.schedule_request_failed": LogEvent(
        "warning", "reason", "The request for a schedule failed; the job tries again"
    ),
    "pace.schedule_adopted": LogEvent(
        "info",
        "round groups predicted_iteration_s bound_s",
        "Training changes to a new schedule after `round` steps; by its profile, no plan is faster than"
        " `bound_s`",
    ),
    "pace.job_name_shared": LogEvent(
        "warning",
        "job consequence",
        "Another run with the same name sent a profile meanwhile, and this one follows its schedule",
    ),
    "pace.graph_planned": LogEvent(
        "info",
        "graph nodes collectives buckets unplanned_s planned_s bound_s search_s",
        "The collectives of a compiled graph were planned; times are predictions, `search_s` was measured",
    ),
    "pace.tuning": LogEvent(
        "info",
        "method plain_s start_bytes",
        "A search for the plan begins; `plain_s` is the iteration time before the search",
    ),
    "pace.tuning_trial": LogEvent(
        "debug", "iteration_s number *", "A proposed plan was timed; other fields are its sizes and order"
    ),
    "pace.tuning_failed": LogEvent(
        "warning", "reason", "The search stopped early; the best proposals so far are compared"
    ),
    "pace.trial": LogEvent(
        "info", "modes steps", "Each of these modes is timed; the trial takes `steps` steps in total"
    ),
    "pace.mode_chosen": LogEvent(
        "info",
        "mode measured_s deviation_s speedup",
        "The trial ended; `measured_s` has each mode's median iteration time on its slowest rank,"
        " `deviation_s` the standard error of that time; `speedup` is over plain training",
    ),
    "pace.faster_than_bound": LogEvent(
        "warning",
        "measured_s bound_s consequence",
        "Iterations are shorter than the bound of the schedule: the machine or the network was slower when"
        " the profile was recorded",
    ),
    "pace.ended_in_trial": LogEvent(
        "info",
        "mode reason",
        "Training ended while modes or plans were being timed; `mode` ran last",
    ),
    "pace.ended_without_schedule": LogEvent(
        "info", "reason", "Training ended before it changed to the schedule that it waited for"
    ),
    "pace.profiling": LogEvent("info", "reason iterations", "Recording of a profile begins"),
    "pace.measuring_network": LogEvent(
        "debug", "expected_s steps", "Ranks measure all-reduces, for `expected_s` spread over `steps`"
    ),
    "pace.profile_submitted": LogEvent(
        "info",
        "service job profile_sha256 predicted_iteration_s",
        "The service has scheduled the job's profile",
    ),
    "pace.profile_not_submitted": LogEvent(
        "warning",
        "service job profile_sha256 reason consequence",
        "The service did not accept the profile, or still computes its schedule; the job tries again",
    ),
    "pace.profile_refused": LogEvent("warning", "reason", "The service refused the profile"),
    "pace.profile_failed": LogEvent("warning", "reason", "No profile could be made"),
    "pace.capture_inexact": LogEvent(
        "warning",
        "profile error plain_iteration_s overhead consequence",
        "A captured profile differs from plain iterations by more than expected",
    ),
    "pace.drift": LogEvent(
        "info",
        "ratio against reference_s consequence",
        "Iterations take `ratio` times `reference_s`: the time of the first ones under this schedule"
        " (`against` is `start`), or the one that it predicts (`prediction`)",
    ),
    "pace.report_sent": LogEvent(
        "debug",
        "service job measured_iteration_s predicted_iteration_s",
        "The measured iteration time was sent to the service",
    ),
    "pace.report_not_sent": LogEvent(
        "debug", "service job measured_iteration_s reason", "The measured iteration time could not be sent"
    ),
    "pace.weights_broadcast": LogEvent(
        "info", "changed total consequence", "Weights of other ranks differed, and were replaced by rank 0's"
    ),
    "pace.barrier_mode": LogEvent("warning", "reason", "Training runs with a barrier"),
    "pace.checked": LogEvent(
        "warning",
        "rank steps result",
        'Training with `mode="check"` ends; `result` says whether a missed use was found',
    ),
    "pace.unmarked_nan": LogEvent(
        "warning",
        "rank step where",
        'With `mode="check"`, a NaN appeared that is the model\'s own, or lost its mark; logged once',
    ),
    "pace.memory_shared": LogEvent(
        "info",
        "rank parameters consequence",
        "Other tensors share parameters' memory, so their updates are applied in `step()`",
    ),
    "pace.state_held": LogEvent(
        "warning",
        "consequence",
        "The loop keeps `optimizer.state`'s dictionary, so updates are applied in `step()`",
    ),
    "pace.waits_for_gradients": LogEvent(
        "info", "reason", "Gradients are read before `step()`, so updates wait for all of them"
    ),
    "pace.not_sharded": LogEvent("info", "reason", "Updates are not sharded in this job"),
    "pace.whole_updates": LogEvent("info", "reason", "Updates are no longer sharded"),
    "pace.step_skipped": LogEvent(
        "warning", "norm consequence", "A norm was not finite, so a step changed nothing; logged once"
    ),
    "pace.sparse_gradients_sent_whole": LogEvent(
        "warning", "modules reason", "Sparse gradients are sent whole"
    ),
    "pace.tables_left_out": LogEvent(
        "warning",
        "profile modules",
        "A profile lacks the rows that these modules exchange with servers; its metadata has their bytes",
    ),
    "pace.groups_superseded": LogEvent("info", "by", "The schedule replaces Horovod's `groups`"),
    "pace.no_peer_store": LogEvent(
        "warning", "consequence", "Over Horovod, errors will not name the rank at fault"
    ),
    "pace.stall": LogEvent(
        "warning",
        "waiting_for peers",
        "Training waits long for a group; `peers` has what each rank has not sent",
    ),
    "pace.caller_refused": LogEvent("warning", "caller reason", "A listening process refused a connection"),
}

# Digits of the numbers in a line; records hold them whole.
_DIGITS = 3

# Frames of structlog between the line that logs and ``logging``.
_FRAMES = 4


def _unasked(
    logger: logging.Logger, method: str, values: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Drop what ``logging`` does not want; in a job that does not configure it, write "info" to stderr.

    Python itself does this for warnings only.
    """
    declared = TRAINING_EVENTS.get(values["event"])
    if declared is not None and method == declared.level == "info" and _is_unconfigured(logger):
        rest = {name: value for name, value in values.items() if name != "event"}
        text = _text(values["event"], rest)
        if logging.lastResort is not None:
            logging.lastResort.handle(logger.makeRecord(logger.name, logging.INFO, "", 0, text, (), None))
        raise structlog.DropEvent
    return structlog.stdlib.filter_by_level(logger, method, values)


def _is_unconfigured(logger: logging.Logger) -> bool:
    """Return whether nobody has set a handler or a level for this logger."""
    if logger.hasHandlers() or logger.manager.disable >= logging.INFO:
        return False
    above = [logger, logging.getLogger("pace")]
    return not any(each.level for each in above) and logging.getLogger().level == logging.WARNING


def _text(event: str, values: Mapping[str, Any]) -> str:
    return " ".join([event, *(f"{name}={_rounded(value)!r}" for name, value in values.items())])


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def _render(
    _logger: Any, _method: str, values: structlog.typing.EventDict
) -> tuple[tuple[str], dict[str, Any]]:
    event = values.pop("event")
    text = _text(event, values)
    return (text,), {"extra": {"pace_event": event, "pace_values": dict(values)}, "stacklevel": _FRAMES}


log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    logging.getLogger("pace.runtime"),
    processors=[_unasked, _render],
    wrapper_class=structlog.stdlib.BoundLogger,
    context_class=dict,
)
"""Every record has the event's name as `pace_event` and its values as `pace_values`."""


def note_refusal(caller: str, error: Exception) -> None:
    """Log that a caller of a listening process was refused."""
    log.warning("pace.caller_refused", caller=caller, reason=str(error))
