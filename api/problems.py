"""Which error is answered with which problem document (RFC 9457). All of the mapping is here."""

from collections.abc import Iterator
from http import HTTPStatus
from typing import NamedTuple

from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import InterfaceError, OperationalError
from starlette.exceptions import HTTPException

from pace.api import errors
from pace.client.documents import Problem
from pace.documents.base import explain
from pace.errors import InvalidDocument, InvalidOptions, SolverFailed

_SQLITE_FULL = 13
_POSTGRESQL_DISK_FULL = "53100"


class _Kind(NamedTuple):
    """A kind of problem: the end of its type, which is stable, its status, and what it means."""

    name: str
    status: int
    meaning: str

    def problem(self, detail: str) -> Problem:
        """Say what is wrong this time; the title is the name in words, or HTTP's own phrase."""
        phrase = HTTPStatus(self.status).phrase
        title = phrase if self.name == _HTTP.name else self.name.replace("-", " ").capitalize()
        return Problem(type=f"urn:pace:problem:{self.name}", title=title, status=self.status, detail=detail)


_INVALID_REQUEST = _Kind(
    "invalid-request",
    422,
    "The request is not valid: `detail` names the field, its value and what was expected",
)
_LIMIT_EXCEEDED = _Kind("limit-exceeded", 422, "The work needs more time or memory than one task may use")
_INTERNAL_ERROR = _Kind("internal-error", 500, "A defect: the log has the cause under the request's id")
_STORAGE_FULL = _Kind(
    "storage-full", 507, "The disk of the database, or of large bodies, is full or cannot be written"
)
_STORAGE_UNAVAILABLE = _Kind(
    "storage-unavailable", 503, "The database or object storage does not answer; ask again later"
)
_HTTP = _Kind("http", 0, "Another error of HTTP, with its own status, such as 405")

# An error is answered by the first of its classes that is here; its message is the detail.
_KINDS: dict[type[Exception], _Kind] = {
    InvalidOptions: _Kind("invalid-options", 422, "The options are not valid"),
    SolverFailed: _Kind("solver-failed", 500, "A defect of the solver: see the log"),
    errors.InvalidRequest: _INVALID_REQUEST,
    errors.AmbiguousLength: _Kind(
        "ambiguous-length", 400, "The request has both `Content-Length` and `Transfer-Encoding`"
    ),
    errors.InvalidFile: _Kind(
        "invalid-file", 422, "The file to import cannot be read; `detail` names the place"
    ),
    errors.NotFound: _Kind("not-found", 404, "There is no such resource in this tenant"),
    errors.Unauthorized: _Kind("unauthorized", 401, "There is no valid API key or token"),
    errors.Forbidden: _Kind("forbidden", 403, "The key lacks the scope"),
    errors.QuotaExceeded: _Kind("quota-exceeded", 403, "The tenant has no quota left for stored bytes"),
    errors.ForeignHost: _Kind(
        "foreign-host",
        421,
        "The request names a host, or is from a web page of a host, that `PACE_ALLOWED_HOSTS` lacks",
    ),
    errors.RateLimited: _Kind(
        "rate-limited", 429, "Too many requests of the tenant: ask again after `Retry-After`"
    ),
    errors.QueueFull: _Kind("queue-full", 429, "Too much work at once: ask again after `Retry-After`"),
    errors.UnsupportedMediaType: _Kind(
        "unsupported-media-type", 415, "The body has an unsupported type or encoding"
    ),
    errors.BodyTimeout: _Kind("timeout", 408, "Head or body came too slowly"),
    errors.ContentTooLarge: _Kind("too-large", 413, "A body, profile or grid is beyond its limit"),
    errors.InUse: _Kind("in-use", 409, "Another resource refers to what is to be deleted"),
    errors.TaskIsFinished: _Kind("finished", 409, "The task has ended, so it cannot be cancelled"),
    errors.TaskCancelled: _Kind("cancelled", 409, "The task was cancelled"),
    errors.LimitExceeded: _LIMIT_EXCEEDED,
    errors.WorkerDied: _Kind(
        "worker-died", 500, "A worker process died while it worked on the task: see the log"
    ),
    errors.WorkerNotStarted: _Kind(
        "worker-not-started", 503, "A worker process did not start; ask again later"
    ),
    errors.ExecutorMismatch: _Kind(
        "executor-mismatch", 503, "The Dask cluster's workers cannot run the service's tasks; ask again later"
    ),
    errors.IssuerUnavailable: _Kind(
        "issuer-unavailable", 503, "The OpenID Connect issuer does not answer; API keys work"
    ),
    errors.NotInstalled: _Kind(
        "not-installed", 501, "The service lacks an optional package, which `detail` names"
    ),
    errors.SpoolFull: _STORAGE_FULL,
    errors.StorageTimeout: _STORAGE_UNAVAILABLE,
    errors.ObjectsUnavailable: _STORAGE_UNAVAILABLE,
    errors.ObjectLost: _Kind(
        "document-lost", 500, "Object storage lacks a document that the database names: see the log"
    ),
    errors.ResultDeleted: _Kind("gone", 503, "The result was deleted while it was fetched; ask again"),
    errors.ServiceStopping: _Kind("stopping", 503, "The service is being stopped; ask again later"),
}


def _document_kind(kind: type[InvalidDocument]) -> _Kind:
    return _Kind(kind.problem, 422, f"The {kind.kind} is not valid")


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
        case OperationalError(orig=errors.DatabaseReplaced() as replaced):
            return _STORAGE_UNAVAILABLE.problem(str(replaced))
        case OperationalError() | InterfaceError():
            return _STORAGE_UNAVAILABLE.problem("the database does not answer; ask again later")
        case MemoryError():
            return _LIMIT_EXCEEDED.problem("the work needed more memory than one request may use")
        case RequestValidationError():
            return _INVALID_REQUEST.problem(explain(error))
        case HTTPException(status_code=HTTPStatus.NOT_FOUND):
            return _HTTP._replace(status=404).problem(
                "nothing is here: the web page is at /, the API's at /docs"
            )
        case HTTPException():
            return _HTTP._replace(status=error.status_code).problem(str(error.detail))
    if isinstance(error, InvalidDocument):
        return _document_kind(type(error)).problem(str(error))
    for kind in type(error).__mro__:
        if kind in _KINDS:
            return _KINDS[kind].problem(str(error))
    return _INTERNAL_ERROR.problem("the service failed; its log has the cause, under the request id")


def kinds_of_problems() -> Iterator[tuple[str, int | None, str]]:
    """Yield the name, status and meaning of each kind of problem, by status; "http" has many statuses."""
    documents = map(_document_kind, InvalidDocument.by_problem.values())
    kinds = {*_KINDS.values(), *documents, _INTERNAL_ERROR}
    for kind in sorted(kinds, key=lambda kind: (kind.status, kind.name)):
        yield kind.name, kind.status, kind.meaning
    yield _HTTP.name, None, _HTTP.meaning


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
