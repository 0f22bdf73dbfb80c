"""Which error is answered with which problem document (RFC 9457). All of the mapping is here."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from http import HTTPStatus

from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import InterfaceError, OperationalError
from starlette.exceptions import HTTPException

from pace.api import errors
from pace.client.documents import Problem
from pace.documents.base import explain
from pace.errors import (
    InvalidFabric,
    InvalidGraph,
    InvalidJobProgram,
    InvalidOptions,
    InvalidProfile,
    InvalidSchedule,
    InvalidSteps,
    InvalidSync,
    SolverFailed,
)

_SQLITE_FULL = 13
_POSTGRESQL_DISK_FULL = "53100"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A kind of problem: the end of its type, which is stable, its status, its title and what it means."""

    name: str
    status: int
    meaning: str
    title: str | None = None

    def problem(self, detail: str) -> Problem:
        """Say what is wrong this time; the title is the status's phrase unless there is a better one."""
        title = self.title or HTTPStatus(self.status).phrase
        return Problem(type=f"urn:pace:problem:{self.name}", title=title, status=self.status, detail=detail)


_INVALID_REQUEST = _Kind(
    name="invalid-request",
    status=422,
    title="Invalid request",
    meaning="The request is not valid: `detail` names the field, its value and what was expected",
)
_LIMIT_EXCEEDED = _Kind(
    name="limit-exceeded",
    status=422,
    title="Limit exceeded",
    meaning="The work needs more time or memory than one task may use",
)
_INTERNAL_ERROR = _Kind(
    name="internal-error", status=500, meaning="A defect: the log has the cause under the request's id"
)
_STORAGE_FULL = _Kind(
    name="storage-full",
    status=507,
    meaning="The disk of the database, or of large bodies, is full or cannot be written",
)
_STORAGE_UNAVAILABLE = _Kind(
    name="storage-unavailable",
    status=503,
    meaning="The database or object storage does not answer; ask again later",
)
_HTTP = _Kind(name="http", status=0, meaning="Another error of HTTP, with its own status, such as 405")

# An error is answered by the first of its classes that is here; its message is the detail.
_KINDS: dict[type[Exception], _Kind] = {
    InvalidProfile: _Kind(
        name="invalid-profile", status=422, title="Invalid profile", meaning="The profile is not valid"
    ),
    InvalidGraph: _Kind(
        name="invalid-graph", status=422, title="Invalid graph", meaning="The graph is not valid"
    ),
    InvalidSteps: _Kind(
        name="invalid-steps", status=422, title="Invalid steps", meaning="The steps document is not valid"
    ),
    InvalidFabric: _Kind(
        name="invalid-fabric",
        status=422,
        title="Invalid network, batch or scenario",
        meaning="The network, the batch or the scenario is not valid",
    ),
    InvalidJobProgram: _Kind(
        name="invalid-job-program",
        status=422,
        title="Invalid job program",
        meaning="The job program is not valid",
    ),
    InvalidOptions: _Kind(
        name="invalid-options", status=422, title="Invalid options", meaning="The options are not valid"
    ),
    InvalidSync: _Kind(
        name="invalid-sync",
        status=422,
        title="Invalid sync document",
        meaning="The weight-sync, resharding, delta-sync or outer-sync document is not valid",
    ),
    InvalidSchedule: _Kind(
        name="invalid-schedule", status=422, title="Invalid schedule", meaning="The schedule is not valid"
    ),
    SolverFailed: _Kind(
        name="solver-failed", status=500, title="Solver failed", meaning="A defect of the solver: see the log"
    ),
    errors.InvalidRequest: _INVALID_REQUEST,
    errors.AmbiguousLength: _Kind(
        name="ambiguous-length",
        status=400,
        meaning="The request has both `Content-Length` and `Transfer-Encoding`",
    ),
    errors.InvalidFile: _Kind(
        name="invalid-file",
        status=422,
        title="Invalid file",
        meaning="The file to import cannot be read; `detail` names the place",
    ),
    errors.NotFound: _Kind(name="not-found", status=404, meaning="There is no such resource in this tenant"),
    errors.Unauthorized: _Kind(name="unauthorized", status=401, meaning="There is no valid API key or token"),
    errors.Forbidden: _Kind(name="forbidden", status=403, meaning="The key lacks the scope"),
    errors.QuotaExceeded: _Kind(
        name="quota-exceeded",
        status=403,
        title="Quota exceeded",
        meaning="The tenant has no quota left for stored bytes",
    ),
    errors.ForeignHost: _Kind(
        name="foreign-host",
        status=421,
        meaning="The request names a host, or is from a web page of a host, that `PACE_ALLOWED_HOSTS` lacks",
    ),
    errors.RateLimited: _Kind(
        name="rate-limited",
        status=429,
        meaning="Too many requests of the tenant: ask again after `Retry-After`",
    ),
    errors.QueueFull: _Kind(
        name="queue-full", status=429, meaning="Too much work at once: ask again after `Retry-After`"
    ),
    errors.UnsupportedMediaType: _Kind(
        name="unsupported-media-type", status=415, meaning="The body has an unsupported type or encoding"
    ),
    errors.BodyTimeout: _Kind(name="timeout", status=408, meaning="Head or body came too slowly"),
    errors.ContentTooLarge: _Kind(
        name="too-large", status=413, meaning="A body, profile or grid is beyond its limit"
    ),
    errors.InUse: _Kind(
        name="in-use", status=409, meaning="Another resource refers to what is to be deleted"
    ),
    errors.TaskIsFinished: _Kind(
        name="finished", status=409, meaning="The task has ended, so it cannot be cancelled"
    ),
    errors.TaskCancelled: _Kind(
        name="cancelled", status=409, title="Cancelled", meaning="The task was cancelled"
    ),
    errors.LimitExceeded: _LIMIT_EXCEEDED,
    errors.WorkerDied: _Kind(
        name="worker-died",
        status=500,
        title="Worker died",
        meaning="A worker process died while it worked on the task: see the log",
    ),
    errors.WorkerNotStarted: _Kind(
        name="worker-not-started", status=503, meaning="A worker process did not start; ask again later"
    ),
    errors.ExecutorMismatch: _Kind(
        name="executor-mismatch",
        status=503,
        meaning="The Dask cluster's workers cannot run the service's tasks; ask again later",
    ),
    errors.IssuerUnavailable: _Kind(
        name="issuer-unavailable",
        status=503,
        meaning="The OpenID Connect issuer does not answer; API keys work",
    ),
    errors.NotInstalled: _Kind(
        name="not-installed",
        status=501,
        meaning="The service lacks an optional package, which `detail` names",
    ),
    errors.SpoolFull: _STORAGE_FULL,
    errors.StorageTimeout: _STORAGE_UNAVAILABLE,
    errors.ObjectsUnavailable: _STORAGE_UNAVAILABLE,
    errors.ObjectLost: _Kind(
        name="document-lost",
        status=500,
        title="Document lost",
        meaning="Object storage lacks a document that the database names: see the log",
    ),
    errors.ResultDeleted: _Kind(
        name="gone", status=503, meaning="The result was deleted while it was fetched; ask again"
    ),
    errors.ServiceStopping: _Kind(
        name="stopping", status=503, meaning="The service is being stopped; ask again later"
    ),
}


def problem_of(error: BaseException) -> Problem:
    """Return the problem document of an error.

    The problem of an unexpected error says nothing about the inside of the service.
    """
    match error:
        case errors.TaskFailed():
            return error.problem
        case OperationalError() if _disk_is_full(error):
            detail = (
                "the database's disk is full: accepted work is kept, but nothing new is stored; "
                "try again later"
            )
            return _STORAGE_FULL.problem(detail)
        case OperationalError() | InterfaceError():
            return _STORAGE_UNAVAILABLE.problem("the database does not answer; ask again later")
        case MemoryError():
            return _LIMIT_EXCEEDED.problem("the work needed more memory than one request may use")
        case RequestValidationError():
            return _INVALID_REQUEST.problem(explain(error))
        case HTTPException():
            return replace(_HTTP, status=error.status_code).problem(str(error.detail))
    for kind in type(error).__mro__:
        if kind in _KINDS:
            return _KINDS[kind].problem(str(error))
    return _INTERNAL_ERROR.problem("the service failed; its log has the cause, under the request id")


def kinds_of_problems() -> Iterator[tuple[str, int | None, str]]:
    """Yield the name, status and meaning of each kind of problem, by status; "http" has many statuses."""
    kinds = {*_KINDS.values(), _INTERNAL_ERROR}
    for kind in sorted(kinds, key=lambda kind: (kind.status, kind.name)):
        yield kind.name, kind.status, kind.meaning
    yield _HTTP.name, None, _HTTP.meaning


def brief(error: BaseException | None) -> str:
    """Return what went wrong in few words, for a line of the log: SQLAlchemy's own have many."""
    cause = getattr(error, "orig", None) or error
    return str(cause) or type(cause).__name__


def is_foreseen(error: BaseException) -> bool:
    """Whether an error has a problem that says what it is: a traceback would tell nothing more."""
    return problem_of(error).type != _INTERNAL_ERROR.problem("").type


def headers_of(error: BaseException) -> dict[str, str]:
    """Return the headers that an error's answer has besides the usual ones."""
    match error:
        case errors.RateLimited(limit=int(limit)):
            wait_s = str(error.retry_after_s)
            rate = {"RateLimit-Limit": str(limit), "RateLimit-Remaining": "0", "RateLimit-Reset": wait_s}
            return {"Retry-After": wait_s} | rate
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
