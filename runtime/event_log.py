"""The runtime's log: events with their values, through Python's ``logging``, as "pace.runtime".

Nothing is set up here: without any configuration Python writes warnings to stderr, and a job that
configures ``logging`` decides about the rest. What holds for all ranks is logged by rank 0; what is
about one rank (an error, a stall) is logged by that rank, with its number.
"""

import logging
from typing import Any

import structlog

# Frames of structlog between the line that logs and ``logging``.
_FRAMES = 4


def _render(
    _logger: Any, _method: str, values: structlog.typing.EventDict
) -> tuple[tuple[str], dict[str, Any]]:
    event = values.pop("event")
    text = " ".join([event, *(f"{name}={value!r}" for name, value in values.items())])
    return (text,), {"extra": {"pace_event": event, "pace_values": dict(values)}, "stacklevel": _FRAMES}


log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    logging.getLogger("pace.runtime"),
    processors=[structlog.stdlib.filter_by_level, _render],
    wrapper_class=structlog.stdlib.BoundLogger,
    context_class=dict,
)
"""Every record has the event's name as `pace_event` and its values as `pace_values`."""


def note_refusal(caller: str, error: Exception) -> None:
    """Log that a caller of a listening process was refused."""
    log.warning("pace.caller_refused", caller=caller, reason=str(error))
