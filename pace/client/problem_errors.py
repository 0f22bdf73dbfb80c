"""Which error of ours a problem document of the service stands for."""

from pydantic import ValidationError

from pace.client.documents import Problem
from pace.errors import AccessDenied, InvalidDocument, InvalidOptions, PaceError, ServiceUnavailable


def error_of(problem: Problem, url: str) -> PaceError:
    """Return the error of a problem that the service at a URL answered with."""
    # By the last word of the type. What else goes wrong is the service's fault, or the request's.
    name = problem.type.rpartition(":")[2]
    if name == "invalid-options":
        return InvalidOptions(problem.detail)
    if name in InvalidDocument.by_problem:
        return InvalidDocument.by_problem[name](problem.detail)
    if problem.status in (401, 403):
        remedy = "set PACE_API_KEY, or pass api_key=" if problem.status == 401 else "use another API key"
        return AccessDenied(f"{url} answered {problem.status} {problem.title}: {problem.detail} ({remedy})")
    return ServiceUnavailable(f"{url} answered {problem.status} {problem.title}: {problem.detail}")


def detail_of(body: bytes) -> str:
    """Return what a body says is wrong: a problem's detail, or else its first 200 bytes."""
    try:
        return Problem.model_validate_json(body).detail
    except ValidationError:
        return body[:200].decode(errors="replace")
