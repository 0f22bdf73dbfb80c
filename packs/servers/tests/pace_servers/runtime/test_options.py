"""Options of training with parameter servers: what is refused, and what is never shown."""

import ssl
from collections.abc import Callable
from typing import Any, cast

import pytest
from torch import nn

from pace.errors import InvalidOptions
from pace.runtime.options import Tune
from pace.runtime.torch import DistributedOptimizer
from pace_servers.runtime import Mixed, ParameterServers, asynchronous
from tests.runtime.control.test_live_search import assert_tuned_together, jobs, refused
from tests.runtime.launch import run_ranks


@pytest.mark.parametrize(
    ("kind", "name", "value", "needed"),
    [
        (ParameterServers, "servers", "here", "'colocated' or a list of HOST:PORT is needed"),
        (ParameterServers, "servers", [], "'colocated' or a list of HOST:PORT is needed"),
        (ParameterServers, "deterministic", 1, "True or False is needed"),
        (ParameterServers, "pacing_bytes_per_s", 0, "a positive number is needed"),
        (ParameterServers, "host", "", "a text that is not empty is needed"),
        (ParameterServers, "compression", "zip", "'none', 'fp16' or 'bf16' is needed"),
        (Mixed, "pushed", "embedding.*", "a list of gradients' names is needed"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(kind: Any, name: str, value: object, needed: str) -> None:
    """The message names the argument, its value and what is allowed."""
    with pytest.raises(InvalidOptions) as refusal:
        kind(**{name: value})
    assert str(refusal.value).startswith(f"{name} is {value!r}; ")
    assert needed in str(refusal.value)


def _any(kind: Any) -> Any:
    """Return a class for calls that no type checker would let pass."""
    return kind


@pytest.mark.parametrize(
    ("build_options", "said"),
    [
        (
            lambda: _any(ParameterServers)(pushed=["head.*"]),
            "ParameterServers has no option pushed: give"
            " communication=pace_servers.runtime.Mixed(pushed=...)",
        ),
        (
            lambda: _any(ParameterServers)(servers=["nowhere"]),
            "server 'nowhere': HOST:PORT is needed, as in 10.0.0.5:7070",
        ),
        (
            lambda: _any(ParameterServers)(token=5),
            "token is <class 'int'>; a text that is not empty is needed",
        ),
        (
            lambda: _any(ParameterServers)(ssl_context=True),
            "ssl_context is of type bool; an ssl.SSLContext is needed",
        ),
        (
            lambda: _any(ParameterServers)(servers="colocated", ssl_context=ssl.create_default_context()),
            "ssl_context needs servers=[HOST:PORT, ...]: colocated servers have no certificate",
        ),
    ],
)
def test_options_that_cannot_be_meant_are_refused(build_options: Callable[[], Any], said: str) -> None:
    """Wrong types, unknown names and contradictions, in one line that says what to do; no secret is shown."""
    with pytest.raises(InvalidOptions) as refusal:
        build_options()
    assert str(refusal.value) == said


def test_a_token_is_not_in_what_is_printed() -> None:
    """Nor in a log."""
    assert "secret" not in repr(Mixed(token="secret"))


@pytest.mark.parametrize(
    ("name", "kind"), [("servers", "ParameterServers"), ("token", "ParameterServers"), ("pushed", "Mixed")]
)
def test_front_doors_say_where_an_option_belongs(name: str, kind: str) -> None:
    """An option that is given to a front door itself is an error that names its object."""
    given: Any = {name: "x"}
    for door in (DistributedOptimizer, asynchronous):
        with pytest.raises(InvalidOptions) as refusal:
            door(cast("Any", None), nn.Linear(1, 1), **given)
        assert f"give communication=pace_servers.runtime.{kind}({name}=...)" in str(refusal.value)


def test_a_plan_is_searched_while_training() -> None:
    """Credit is the kernel's here; the rest is searched, and the servers take every new plan."""
    tune = Tune(method="random", num_trials=3, iterations=1)
    over = ParameterServers(servers="colocated")
    (one,), (other,) = run_ranks(jobs, 2, "gloo", [{"plan": tune, "communication": over}])
    assert_tuned_together(one, other, 3)
    assert {order for order in one.orders if order is not None} <= {"overtake", "priority"}


def test_credit_alone_cannot_be_searched() -> None:
    """The operating system limits the bytes in flight."""
    given = {"plan": Tune(method="random", knobs=("credit",)), "communication": ParameterServers()}
    for (said,) in run_ranks(refused, 2, [given]):
        assert "credit" in said
