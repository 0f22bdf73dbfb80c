"""What can go wrong on the testbed itself, as opposed to in a contender."""

from benchmarks.harness.prerequisites import Unavailable
from pace.errors import PaceError


class TestbedUnavailable(Unavailable):
    """No testbed can be made on this machine by this user; the message says what would help."""

    __test__ = False  # pytest takes every class whose name begins so for a test


class WrongRate(Unavailable):
    """A link does not carry what it was shaped to."""


class RankFailed(PaceError):
    """A rank raised, died or did not answer in time; the message holds what it said."""
