"""What the runtime logs, for tests that run in the same process."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        found: Any = record
        self.events.append({"event": found.pace_event, **found.pace_values})


@contextmanager
def captured_events() -> Iterator[list[dict[str, Any]]]:
    """Collect the runtime's events, warnings or not."""
    logger = logging.getLogger("pace.runtime")
    collector = _Collector()
    before = logger.level, logger.propagate
    logger.addHandler(collector)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield collector.events
    finally:
        logger.removeHandler(collector)
        logger.setLevel(before[0])
        logger.propagate = before[1]
