"""Every error that PACE raises on purpose.

::

    PaceError
    ├── InvalidDocument       a document that is not valid; packs add kinds of their own
    │   ├── InvalidProfile    a profile
    │   ├── InvalidGraph      a graph of ops and collectives
    │   ├── InvalidSteps      a steps document of training with parameter servers
    │   ├── InvalidCluster    a cluster document of parameter servers
    │   ├── InvalidSchedule   a schedule, which may also not fit its profile
    │   └── InvalidJobProgram a job program
    ├── FormatError           a file of another tool that cannot be read
    ├── InvalidOptions        options that do not exist, are out of range, or contradict one another
    │   └── RequestRefused    the scheduling service refused a request
    ├── ScheduleMismatch      a schedule made for another model or number of workers
    ├── SolverFailed          the solver of a linear program found no solution
    ├── ServiceUnavailable    the scheduling service failed or cannot be reached
    │   └── AccessDenied      the service needs an API key, or does not accept the one it got
    ├── CommunicationFailed   a collective failed, or another process ended
    │   └── RoundMissed       a group went on without this member, which may join again
    └── InvalidUse            a call that is not possible in the present state
"""

import re
from typing import ClassVar


class PaceError(Exception):
    """Root of all errors that PACE raises on purpose."""


class InvalidDocument(PaceError, ValueError):
    """A document that breaks its own rules; the message says where.

    Attributes
    ----------
    kind
        What is not valid, in words.
    problem
        Name of the service's problem for it: ``invalid-profile`` for InvalidProfile.
    by_problem
        Every kind that is imported, by the name of its problem.
    """

    kind: ClassVar[str]
    problem: ClassVar[str]
    by_problem: ClassVar[dict[str, type["InvalidDocument"]]] = {}

    def __init_subclass__(cls) -> None:
        cls.problem = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()
        InvalidDocument.by_problem[cls.problem] = cls


class InvalidProfile(InvalidDocument):
    """A profile that is not valid; the message names the op or gradient."""

    kind = "profile"


class InvalidGraph(InvalidDocument):
    """A graph of ops and collectives that breaks its own rules; the message names the node."""

    kind = "graph"


class InvalidSteps(InvalidDocument):
    """A steps document that breaks its own rules; the message names the op or the step."""

    kind = "steps document"


class InvalidCluster(InvalidDocument):
    """A cluster document that is not valid; the message names the field."""

    kind = "cluster document"


class FormatError(PaceError, ValueError):
    """A file written by another tool that cannot be read; names the file, the position and the reason."""

    def __init__(self, path: object, reason: str, position: str | None = None) -> None:
        self.path = path
        self.reason = reason
        self.position = position
        super().__init__(f"{path}: {reason}" if position is None else f"{path}, {position}: {reason}")


class InvalidSchedule(InvalidDocument):
    """A schedule document that breaks its own rules or does not fit its profile."""

    kind = "schedule"


class InvalidJobProgram(InvalidDocument):
    """A job program that breaks its own rules; the message names the rank, the group or the operation."""

    kind = "job program"


class InvalidOptions(PaceError, ValueError):
    """An option that does not exist, is out of range or contradicts another; the message says what to do."""


class RequestRefused(InvalidOptions):
    """The scheduling service refused a request as invalid, or as too large; the message says why."""


class ScheduleMismatch(PaceError):
    """A schedule made for another model, other tensors or another number of workers."""


class SolverFailed(PaceError):
    """The solver of a linear program found no solution."""


class ServiceUnavailable(PaceError):
    """The scheduling service failed, cannot be reached, or sent a wrong answer."""


class AccessDenied(ServiceUnavailable):
    """The scheduling service needs an API key, or does not accept the one it got."""


class CommunicationFailed(PaceError):
    """A collective failed or took longer than the time-out, or another process ended."""


class RoundMissed(CommunicationFailed):
    """A group went on without this member; it may join again, and gets the others' state."""


class InvalidUse(PaceError, RuntimeError):
    """A call that is not possible in the present state; the message says what to do instead."""
