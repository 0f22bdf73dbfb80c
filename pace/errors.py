"""Every error that PACE raises on purpose.

::

    PaceError
    ├── InvalidProfile        a profile that is not valid
    ├── InvalidGraph          a graph of ops and collectives that is not valid
    ├── InvalidSteps          a steps document of training with parameter servers that is not valid
    ├── InvalidCluster        a cluster document of parameter servers that is not valid
    ├── FormatError           a file of another tool that cannot be read
    ├── InvalidSchedule       a schedule that is not valid, or does not fit its profile
    ├── InvalidFabric         a network, batch, transfer plan or scenario that is not valid
    ├── InvalidJobProgram     a job program that is not valid
    ├── InvalidSync           a document or plan of weight sync or streaming DiLoCo that is not valid
    ├── InvalidOptions        options that do not exist, are out of range, or contradict one another
    ├── ScheduleMismatch      a schedule made for another model or number of workers
    ├── SolverFailed          the solver of a linear program found no solution
    ├── ServiceUnavailable    the scheduling service failed or cannot be reached
    │   └── AccessDenied      the service needs an API key, or does not accept the one it got
    ├── CommunicationFailed   a collective failed, or another process ended
    │   └── RoundMissed       a group went on without this member, which may join again
    └── InvalidUse            a call that is not possible in the present state
"""


class PaceError(Exception):
    """Root of all errors that PACE raises on purpose."""


class InvalidProfile(PaceError, ValueError):
    """A profile that is not valid; the message names the op or gradient."""


class InvalidGraph(PaceError, ValueError):
    """A graph of ops and collectives that breaks its own rules; the message names the node."""


class InvalidSteps(PaceError, ValueError):
    """A steps document that breaks its own rules; the message names the op or the step."""


class InvalidCluster(PaceError, ValueError):
    """A cluster document that is not valid; the message names the field."""


class FormatError(PaceError, ValueError):
    """A file written by another tool that cannot be read; names the file, the position and the reason."""

    def __init__(self, path: object, reason: str, position: str | None = None) -> None:
        self.path = path
        self.reason = reason
        self.position = position
        super().__init__(f"{path}: {reason}" if position is None else f"{path}, {position}: {reason}")


class InvalidSchedule(PaceError, ValueError):
    """A schedule document that breaks its own rules or does not fit its profile."""


class InvalidFabric(PaceError, ValueError):
    """A network, batch of updates, transfer plan or scenario that is not valid; the message says where."""


class InvalidJobProgram(PaceError, ValueError):
    """A job program that breaks its own rules; the message names the rank, the group or the operation."""


class InvalidSync(PaceError, ValueError):
    """A document or plan of weight sync or streaming DiLoCo that is not valid; the message says why."""


class InvalidOptions(PaceError, ValueError):
    """An option that does not exist, is out of range or contradicts another; the message says what to do."""


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
