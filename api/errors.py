"""Why the service refuses a request or cannot answer it; ``pace.api.problems`` maps each to its answer.

::

    Refused
    ├── InvalidRequest         a body or a parameter that is not what the interface asks for
    ├── AmbiguousLength        a body whose length is said in two ways
    ├── InvalidFile            a file to import that cannot be read
    ├── NotFound               no such resource, or none that this caller may know of
    ├── Unauthorized           no API key or token, or one that is not valid
    ├── Forbidden              the scopes of the API key or token do not allow it
    ├── QuotaExceeded          more than the tenant may have stored
    ├── ForeignHost            a request meant for another host, or sent by another host's page
    ├── UnsupportedMediaType   a body of another type or encoding
    ├── BodyTimeout            a body that does not arrive in time
    ├── ContentTooLarge        a body or a document beyond a limit
    ├── InUse                  a resource that others refer to
    ├── TaskIsFinished         a task that can no longer be cancelled
    ├── TaskCancelled          a task that was cancelled
    ├── TaskFailed             a task that ended without a result; carries its problem
    ├── Overloaded             too much at once
    │   ├── RateLimited        more requests than the tenant may send
    │   └── QueueFull          more work than may wait
    ├── LimitExceeded          work beyond its time or memory
    ├── WorkerDied             a worker process that ended before it answered
    │   └── WorkerNotStarted   one that could not be started
    ├── WorkerFailed           a worker's error that nobody foresaw
    ├── ExecutorMismatch       a cluster whose workers cannot do the service's tasks
    ├── IssuerUnavailable      an issuer of tokens whose keys are not known and cannot be fetched
    ├── NotInstalled           something that is not installed with this service
    ├── SpoolFull              no room on the disk for a large body
    ├── StorageTimeout         a database that does not answer in time
    ├── ObjectsUnavailable     object storage that does not answer, or refuses
    ├── ObjectLost             a document that object storage does not have
    ├── OtherSchema            a database with the schema of another version
    ├── OtherEncoding          a database that cannot hold all names
    ├── ResultDeleted          a result that was deleted while its request was answered
    └── ServiceStopping        the service is being stopped

Worker processes send these to the service, so each can be pickled. Beside them, DatabaseReplaced is an error
of SQLite, which all callers of the database foresee.
"""

import sqlite3

from pace.client.documents import Problem
from pace.errors import PaceError


class Refused(PaceError):
    """A request that is refused or cannot be answered; the message is for the caller."""


class InvalidRequest(Refused):
    """A body or a parameter that is not what the interface asks for."""


class AmbiguousLength(Refused):
    """A body whose length is said in two ways, so that a proxy may see another request."""


class InvalidFile(Refused):
    """A file to import that cannot be read; the message names the place."""


class NotFound(Refused):
    """No such resource, or none that this caller may know of."""


class Unauthorized(Refused):
    """No API key, or one that is not valid."""


class Forbidden(Refused):
    """The API key's scopes do not allow it."""


class QuotaExceeded(Refused):
    """More than the tenant may have stored."""


class ForeignHost(Refused):
    """A request meant for another host, or sent by another host's page."""


class Overloaded(Refused):
    """Too much at once; asking again in `retry_after_s` may help."""

    def __init__(self, detail: str, retry_after_s: int = 1) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class RateLimited(Overloaded):
    """More requests than the tenant may send: `limit`, if that is the tenant's rate limit."""

    def __init__(self, detail: str, retry_after_s: int = 1, limit: int | None = None) -> None:
        super().__init__(detail, retry_after_s)
        self.limit = limit


class QueueFull(Overloaded):
    """More work than may wait."""


class UnsupportedMediaType(Refused):
    """A body of another type or encoding; `accepted_encoding` names one that is understood."""

    def __init__(self, detail: str, accepted_encoding: str | None = None) -> None:
        super().__init__(detail)
        self.accepted_encoding = accepted_encoding


class BodyTimeout(Refused):
    """A body that does not arrive in time."""


class ContentTooLarge(Refused):
    """A body or a document beyond a limit."""


class InUse(Refused):
    """A resource that others refer to."""


class TaskIsFinished(Refused):
    """A task that can no longer be cancelled."""


class TaskCancelled(Refused):
    """A task that was cancelled."""


class TaskFailed(Refused):
    """A task that ended without a result; `problem` says why, as it was stored."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem.detail


class LimitExceeded(Refused):
    """Work beyond its time or memory; asking again would not help."""


class WorkerDied(Refused):
    """A worker process that ended before it answered, and not by its limits."""


class WorkerNotStarted(WorkerDied):
    """A worker process that could not be started; nothing was done yet."""


class WorkerFailed(Refused):
    """A worker's error that nobody foresaw; the worker's log has it."""


class ExecutorMismatch(Refused):
    """A cluster whose workers cannot do the service's tasks."""


class IssuerUnavailable(Refused):
    """An issuer of tokens whose keys are not known and cannot be fetched."""


class NotInstalled(Refused):
    """Something that is not installed with this service."""


class SpoolFull(Refused):
    """No room on the disk for a large body."""


class StorageTimeout(Refused):
    """A database that does not answer in time."""


class ObjectsUnavailable(Refused):
    """Object storage that does not answer, or refuses."""


class ObjectLost(Refused):
    """A document that the database names and object storage does not have."""


class OtherSchema(Refused):
    """A database with the schema of another version."""


class OtherEncoding(Refused):
    """A database with an encoding that cannot hold all names."""


class ResultDeleted(Refused):
    """A result that was deleted while its request was answered."""


class ServiceStopping(Refused):
    """The service is being stopped."""


class DatabaseReplaced(sqlite3.OperationalError):
    """A SQLite file that was deleted or replaced while it was open; the message says what to do."""
