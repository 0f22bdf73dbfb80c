"""Which error is answered with which problem document (RFC 9457). All of the mapping is here."""

from collections.abc import Mapping
from http import HTTPStatus

from pydantic import ValidationError
from sqlalchemy.exc import InterfaceError, OperationalError

from pace.api.documents import Problem
from pace.errors import InvalidOptions, InvalidProfile, InvalidSchedule, PaceError, SolverFailed

_SQLITE_FULL = 13
_POSTGRESQL_DISK_FULL = "53100"


class Refused(PaceError):
    """A request that is answered with a problem document.

    Parameters
    ----------
    problem
        What to answer.
    headers
        Further headers of the answer, such as Retry-After.
    """

    def __init__(self, problem: Problem, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.headers = dict(headers or {})


class WorkerDied(Refused):
    """A worker process ended before it answered, not by its limits; ``problem`` says how."""


def make_problem(kind: str, status: int, detail: str, title: str | None = None) -> Problem:
    """Build a problem of a stable kind; the title is the status's phrase unless given."""
    return Problem(
        type=f"urn:pace:problem:{kind}",
        title=title or HTTPStatus(status).phrase,
        status=status,
        detail=detail,
    )


def invalid_request(detail: str) -> Problem:
    """Say that the body or a parameter is not what the interface asks for."""
    return make_problem("invalid-request", 422, detail, "Invalid request")


def not_found(detail: str) -> Problem:
    """Say that there is no such resource, or none that this caller may know of."""
    return make_problem("not-found", 404, detail)


def too_large(detail: str) -> Problem:
    """Say that a body or document is beyond a limit."""
    return make_problem("too-large", 413, detail)


def faults_of(error: ValidationError) -> str:
    """Say what pydantic found: one line for each fault, with its place."""
    return "\n".join(
        ": ".join([*map(str, fault["loc"]), fault["msg"].removeprefix("Value error, ")])
        for fault in error.errors(include_url=False, include_input=False)[:20]
    )


def queue_full(detail: str, retry_after_s: int) -> Refused:
    """Refuse what would be more work than may wait."""
    return Refused(make_problem("queue-full", 429, detail), {"Retry-After": str(retry_after_s)})


def limit_exceeded(detail: str) -> Problem:
    """Say that work is beyond its time or memory. Not a 5xx: asking again would not help."""
    return make_problem("limit-exceeded", 422, detail, "Limit exceeded")


def problem_of(error: BaseException) -> tuple[Problem, dict[str, str]]:
    """Map any error to the problem that tells of it, and to further headers of the answer.

    What was not foreseen becomes a problem without a word about the inside of the service.
    """
    if isinstance(error, Refused):
        return error.problem, error.headers
    return _problem_of(error), {}


def _disk_is_full(error: OperationalError) -> bool:
    # SQLite's error code is SQLITE_FULL; PostgreSQL's state is disk_full. Drivers are told apart by these.
    code = getattr(error.orig, "sqlite_errorcode", 0)
    return code == _SQLITE_FULL or getattr(error.orig, "sqlstate", None) == _POSTGRESQL_DISK_FULL


def _problem_of(error: BaseException) -> Problem:
    match error:
        case OperationalError() if _disk_is_full(error):
            detail = (
                "the database's disk is full; what was accepted is kept, and nothing new until there is room"
            )
            return make_problem("storage-full", 507, detail)
        case OperationalError() | InterfaceError():
            return make_problem("storage-unavailable", 503, "the database does not answer; ask again later")
        case InvalidProfile():
            return make_problem("invalid-profile", 422, str(error), "Invalid profile")
        case InvalidOptions():
            return make_problem("invalid-options", 422, str(error), "Invalid options")
        case InvalidSchedule():
            return make_problem("invalid-schedule", 422, str(error), "Invalid schedule")
        case SolverFailed():
            return make_problem("solver-failed", 500, str(error), "Solver failed")
        case MemoryError():
            return limit_exceeded("the work needed more memory than one request may use")
    return make_problem(
        "internal-error", 500, "the service failed; the request id finds the cause in its log"
    )
