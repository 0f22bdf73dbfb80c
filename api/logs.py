"""Logs on stderr, including those of libraries: one JSON object a line, or text on a terminal."""

import logging
import sys
import threading
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor

# Reentrant like the handler's lock, because a signal handler may log.
_turn = threading.RLock()


def set_up_logs() -> None:
    """Send all logs of this process to stderr: as JSON, unless that is a terminal."""
    for_people = sys.stderr.isatty()
    last: list[Processor] = (
        [structlog.dev.ConsoleRenderer(repr_native_str=True)]
        if for_people
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        _add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Without the standard library, which takes twice as long for each line.
    structlog.configure(
        processors=[*shared, *last],
        logger_factory=lambda *names: _LineLogger(names[0] if names else None, sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=True,
    )
    handler = _Handler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared[:2], structlog.stdlib.add_logger_name, *shared[3:]],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *last,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)


class _LineLogger:
    def __init__(self, name: str | None, stream: TextIO) -> None:
        self.name = name
        self._stream = stream

    def info(self, line: str) -> None:
        """Write one whole line, also if several threads write."""
        with _turn:
            self._stream.write(f"{line}\n")
            self._stream.flush()

    warning = error = critical = info


class _Handler(logging.StreamHandler[TextIO]):
    def createLock(self) -> None:  # noqa: N802  (the standard library's name)
        self.lock = _turn


def _add_logger_name(logger: _LineLogger, _method: str, event: EventDict) -> EventDict:
    if logger.name is not None:
        event["logger"] = logger.name
    return event


def brief(error: BaseException | None) -> str:
    """Return what went wrong in one line, for the log: SQLAlchemy and PostgreSQL add the statement."""
    cause = getattr(error, "orig", None) or error
    said = getattr(getattr(cause, "diag", None), "message_primary", None) or str(cause)
    return " ".join(said.split()) or type(cause).__name__
