"""How an event of a log is declared; the service and the runtime declare theirs beside their loggers."""

from typing import NamedTuple


class LogEvent(NamedTuple):
    """An event that PACE logs; the reference of log events is made of these.

    Attributes
    ----------
    level
        "debug", "info", "warning" or "error".
    fields
        Names of its values, separated by spaces, with units in the names.
    meaning
        What has happened, and what happens next.
    """

    level: str
    fields: str
    meaning: str
