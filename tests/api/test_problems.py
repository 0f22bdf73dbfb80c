"""Every error of the service has its problem, wherever it was raised."""

import pickle

import pytest

from pace.api import errors
from pace.api.problems import headers_of, problem_of
from pace.client.documents import Problem
from pace.errors import PaceError

STORED = Problem(type="urn:pace:problem:invalid-profile", title="Invalid profile", status=422, detail="op")
ARGUMENTS: dict[type[errors.Refused], tuple[object, ...]] = {
    errors.RateLimited: ("too often", 7),
    errors.QueueFull: ("too many", 5),
    errors.UnsupportedMediaType: ("no such encoding", "gzip"),
    errors.TaskFailed: (STORED,),
}
# Roots of others, and what nobody foresaw: the caller is told no more than that the service failed.
WITHOUT_A_PROBLEM = {
    errors.Refused,
    errors.Overloaded,
    errors.WorkerFailed,
    errors.OtherSchema,
    errors.OtherEncoding,
}
REFUSALS = sorted(
    (kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.Refused)),
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", REFUSALS)
def test_an_error_survives_the_way_from_a_worker(kind: type[errors.Refused]) -> None:
    """Message, problem and headers are the same in the process that answers."""
    error = kind(*ARGUMENTS.get(kind, ("what is wrong",)))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert problem_of(again) == problem_of(error)
    assert headers_of(again) == headers_of(error)


@pytest.mark.parametrize("kind", REFUSALS)
def test_an_error_tells_the_caller_what_is_wrong(kind: type[errors.Refused]) -> None:
    """Its message is the problem's detail; only what nobody foresaw says nothing of the inside."""
    error = kind(*ARGUMENTS.get(kind, ("what is wrong",)))
    problem = problem_of(error)
    if kind in WITHOUT_A_PROBLEM:
        assert problem.type.endswith(":internal-error")
        assert str(error) not in problem.detail
    else:
        assert problem.detail == str(error)
        assert not problem.type.endswith(":internal-error")


def test_headers_say_when_to_ask_again() -> None:
    """As for a full queue, a rate limit, and a missing key."""
    assert headers_of(errors.QueueFull("too many", 5)) == {"Retry-After": "5"}
    assert headers_of(errors.RateLimited("too often", 7)) == {"Retry-After": "7"}
    assert headers_of(errors.RateLimited("too often", 7, 100)) == {
        "Retry-After": "7",
        "RateLimit-Limit": "100",
        "RateLimit-Remaining": "0",
        "RateLimit-Reset": "7",
    }
    assert headers_of(errors.Unauthorized("no key")) == {"WWW-Authenticate": "Bearer"}
    assert headers_of(PaceError("anything")) == {}
