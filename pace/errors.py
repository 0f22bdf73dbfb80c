"""Every error that PACE raises on purpose.

::

    PaceError
    ├── InvalidProfile        a profile that cannot be what was measured
    ├── InvalidGraph          a graph of ops and collectives that cannot be
    ├── InvalidSteps          recorded steps of parameter-server training that cannot be true
    ├── InvalidCluster        parameter servers that cannot be
    ├── FormatError           a file of another tool that cannot be read as what it should be
    ├── InvalidSchedule       a schedule that breaks its own rules or its profile
    ├── InvalidFabric         a network, batch, transfer plan or scenario that cannot be
    ├── InvalidJobProgram     ranks, groups and collectives that cannot be what a job enqueues
    ├── InvalidSync           a weight synchronization, streaming DiLoCo or a plan of either that cannot be
    ├── InvalidOptions        options that do not exist or do not fit one another
    ├── ScheduleMismatch      a schedule made for another model or world
    ├── SolverFailed          the oracle gave no answer
    ├── ServiceUnavailable    the scheduling service cannot be reached or failed
    ├── CommunicationFailed   an all-reduce failed or a peer is gone
    │   └── RoundMissed       a group went on without this member, which may join again
    └── InvalidUse            a call that the runtime cannot carry out in its present state
"""


class PaceError(Exception):
    """Root of all errors that PACE raises on purpose."""


class InvalidProfile(PaceError, ValueError):
    """A profile that cannot be what was measured; the message names the op or gradient."""


class InvalidGraph(PaceError, ValueError):
    """A graph of ops and collectives that breaks its own rules; the message names the node."""


class InvalidSteps(PaceError, ValueError):
    """A steps document that breaks its own rules; the message names the op or the step."""


class InvalidCluster(PaceError, ValueError):
    """A cluster document that names servers or rates that cannot be; the message names the field."""


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
    """A network, batch of updates, transfer plan or scenario that cannot be; the message names the place."""


class InvalidJobProgram(PaceError, ValueError):
    """A job program that breaks its own rules; the message names the rank, the group or the operation."""


class InvalidSync(PaceError, ValueError):
    """A weight-sync or outer-sync document or plan that cannot be; the message names what is wrong."""


class InvalidOptions(PaceError, ValueError):
    """An option that does not exist or does not fit another; the message says what would."""


class ScheduleMismatch(PaceError):
    """A schedule made for another model, other tensors or another number of workers."""


class SolverFailed(PaceError):
    """The solver of a linear program ended without a solution."""


class ServiceUnavailable(PaceError):
    """The scheduling service cannot be reached, failed, or answered nonsense."""


class CommunicationFailed(PaceError):
    """An all-reduce failed, timed out, or a peer is gone."""


class RoundMissed(CommunicationFailed):
    """A group went on without this member; it may join again, and gets the others' state."""


class InvalidUse(PaceError, RuntimeError):
    """A call that the runtime cannot carry out in its present state; the message says what to do instead."""
