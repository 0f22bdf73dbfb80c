"""Which error is answered with which problem document (RFC 9457). All of the mapping is here."""

from dataclasses import dataclass
from http import HTTPStatus

from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import InterfaceError, OperationalError
from starlette.exceptions import HTTPException

from pace.api import errors
from pace.client.documents import Problem
from pace.documents.base import explain
from pace.errors import (
    InvalidFabric,
    InvalidJobProgram,
    InvalidOptions,
    InvalidProfile,
    InvalidSchedule,
    InvalidSteps,
    SolverFailed,
)

_SQLITE_FULL = 13
_POSTGRESQL_DISK_FULL = "53100"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A kind of problem: the end of its type, which is stable, its status, and its title."""

    name: str
    status: int
    title: str | None = None

    def problem(self, detail: str) -> Problem:
        """Say what is wrong this time; the title is the status's phrase unless there is a better one."""
        title = self.title or HTTPStatus(self.status).phrase
        return Problem(type=f"urn:pace:problem:{self.name}", title=title, status=self.status, detail=detail)


_INVALID_REQUEST = _Kind(name="invalid-request", status=422, title="Invalid request")
_LIMIT_EXCEEDED = _Kind(name="limit-exceeded", status=422, title="Limit exceeded")
_INTERNAL_ERROR = _Kind(name="internal-error", status=500)
_STORAGE_FULL = _Kind(name="storage-full", status=507)
_STORAGE_UNAVAILABLE = _Kind(name="storage-unavailable", status=503)

# An error is answered by the first of its classes that is here; its message is the detail.
_KINDS: dict[type[Exception], _Kind] = {
    InvalidProfile: _Kind(name="invalid-profile", status=422, title="Invalid profile"),
    InvalidSteps: _Kind(name="invalid-steps", status=422, title="Invalid steps"),
    InvalidFabric: _Kind(name="invalid-fabric", status=422, title="Invalid network or batch"),
    InvalidJobProgram: _Kind(name="invalid-job-program", status=422, title="Invalid job program"),
    InvalidOptions: _Kind(name="invalid-options", status=422, title="Invalid options"),
    InvalidSchedule: _Kind(name="invalid-schedule", status=422, title="Invalid schedule"),
    SolverFailed: _Kind(name="solver-failed", status=500, title="Solver failed"),
    errors.InvalidRequest: _INVALID_REQUEST,
    errors.AmbiguousLength: _Kind(name="ambiguous-length", status=400),
    errors.InvalidFile: _Kind(name="invalid-file", status=422, title="Invalid file"),
    errors.NotFound: _Kind(name="not-found", status=404),
    errors.Unauthorized: _Kind(name="unauthorized", status=401),
    errors.Forbidden: _Kind(name="forbidden", status=403),
    errors.QuotaExceeded: _Kind(name="quota-exceeded", status=403, title="Quota exceeded"),
    errors.ForeignHost: _Kind(name="foreign-host", status=421),
    errors.RateLimited: _Kind(name="rate-limited", status=429),
    errors.QueueFull: _Kind(name="queue-full", status=429),
    errors.UnsupportedMediaType: _Kind(name="unsupported-media-type", status=415),
    errors.BodyTimeout: _Kind(name="timeout", status=408),
    errors.ContentTooLarge: _Kind(name="too-large", status=413),
    errors.InUse: _Kind(name="in-use", status=409),
    errors.TaskIsFinished: _Kind(name="finished", status=409),
    errors.TaskCancelled: _Kind(name="cancelled", status=409, title="Cancelled"),
    errors.LimitExceeded: _LIMIT_EXCEEDED,
    errors.WorkerDied: _Kind(name="worker-died", status=500, title="Worker died"),
    errors.WorkerNotStarted: _Kind(name="worker-not-started", status=503),
    errors.ExecutorMismatch: _Kind(name="executor-mismatch", status=503),
    errors.IssuerUnavailable: _Kind(name="issuer-unavailable", status=503),
    errors.NotInstalled: _Kind(name="not-installed", status=501),
    errors.SpoolFull: _STORAGE_FULL,
    errors.StorageTimeout: _STORAGE_UNAVAILABLE,
    errors.ObjectsUnavailable: _STORAGE_UNAVAILABLE,
    errors.ObjectLost: _Kind(name="document-lost", status=500, title="Document lost"),
    errors.ResultDeleted: _Kind(name="gone", status=503),
    errors.ServiceStopping: _Kind(name="stopping", status=503),
}


def problem_of(error: BaseException) -> Problem:
    """Return the problem that tells of an error.

    What was not foreseen becomes a problem without a word about the inside of the service.
    """
    match error:
        case errors.TaskFailed():
            return error.problem
        case OperationalError() if _disk_is_full(error):
            detail = (
                "the database's disk is full; what was accepted is kept, and nothing new until there is room"
            )
            return _STORAGE_FULL.problem(detail)
        case OperationalError() | InterfaceError():
            return _STORAGE_UNAVAILABLE.problem("the database does not answer; ask again later")
        case MemoryError():
            return _LIMIT_EXCEEDED.problem("the work needed more memory than one request may use")
        case RequestValidationError():
            return _INVALID_REQUEST.problem(explain(error))
        case HTTPException():
            return _Kind(name="http", status=error.status_code).problem(str(error.detail))
    for kind in type(error).__mro__:
        if kind in _KINDS:
            return _KINDS[kind].problem(str(error))
    return _INTERNAL_ERROR.problem("the service failed; the request id finds the cause in its log")


def brief(error: BaseException | None) -> str:
    """Return what went wrong in few words, for a line of the log: SQLAlchemy's own have many."""
    cause = getattr(error, "orig", None) or error
    return str(cause) or type(cause).__name__


def is_foreseen(error: BaseException) -> bool:
    """Whether an error has a problem that says what it is: a traceback would tell nothing more."""
    return problem_of(error).type != _INTERNAL_ERROR.problem("").type


def rate_headers(limit: int, remaining: int, reset_s: int) -> dict[str, str]:
    """Return the headers that tell a caller how many requests it has left, and for how many seconds."""
    return {
        "RateLimit-Limit": str(limit),
        "RateLimit-Remaining": str(remaining),
        "RateLimit-Reset": str(reset_s),
    }


def headers_of(error: BaseException) -> dict[str, str]:
    """Return the headers that an error's answer has besides the usual ones."""
    match error:
        case errors.RateLimited(limit=int(limit)):
            return {"Retry-After": str(error.retry_after_s), **rate_headers(limit, 0, error.retry_after_s)}
        case errors.Overloaded():
            return {"Retry-After": str(error.retry_after_s)}
        case errors.ServiceStopping() | errors.ObjectsUnavailable() | errors.StorageTimeout():
            return {"Retry-After": "1"}
        case errors.WorkerNotStarted() | OperationalError() | InterfaceError():
            return {"Retry-After": "1"}
        case errors.BodyTimeout() | errors.AmbiguousLength():
            return {"Connection": "close"}
        case errors.Unauthorized():
            return {"WWW-Authenticate": "Bearer"}
        case errors.UnsupportedMediaType(accepted_encoding=str(accepted)):
            return {"Accept-Encoding": accepted}
        case HTTPException():
            return dict(error.headers or {})
    return {}


def _disk_is_full(error: OperationalError) -> bool:
    # SQLite's error code is SQLITE_FULL; PostgreSQL's state is disk_full. Drivers are told apart by these.
    code = getattr(error.orig, "sqlite_errorcode", 0)
    return code == _SQLITE_FULL or getattr(error.orig, "sqlstate", None) == _POSTGRESQL_DISK_FULL
