"""The one entry point for simulation: policies by name, on the same windows."""

from typing import Any

import pytest

import pace
from pace import InvalidOptions, SimulationOptions
from pace.simulation import POLICIES, make_policy, run_policy
from tests.strategies import affine, layered

PROFILE = layered([8, 4, 12], allreduce=affine(0.125, 0.25), workers=2)


def test_policies_are_compared_by_name() -> None:
    """One or several; each takes what it takes alone, with the knobs that it has."""
    options = SimulationOptions(iterations=3, jitter=0.1, seed=7, knobs={"bucket_bytes": 8})
    found = pace.simulate(PROFILE, ["ddp", "fifo"], options)
    assert list(found) == ["ddp", "fifo"]
    assert (found["ddp"].knobs, found["fifo"].knobs) == ({"bucket_bytes": 8}, {})
    alone = run_policy(PROFILE, make_policy("ddp", bucket_bytes=8), iterations=3, jitter=0.1, seed=7)
    assert found["ddp"].iterations_s == tuple(alone.iterations_s)
    assert list(pace.simulate(PROFILE, "fifo")) == ["fifo"]


def test_every_policy_says_its_exchange() -> None:
    """By default all of one network; or those of one exchange."""
    assert tuple(pace.simulate(PROFILE)) == POLICIES
    sharded = tuple(pace.simulate(PROFILE, options=SimulationOptions(exchange="sharded")))
    assert sharded == ("dear", "zero-1", "zero-redundancy", "sharded")
    whole = tuple(pace.simulate(PROFILE, options=SimulationOptions(exchange="allreduce")))
    assert {*sharded, *whole} == set(POLICIES)
    assert not {*sharded} & {*whole}


@pytest.mark.parametrize(
    ("policies", "options", "named"),
    [
        ("lifo", {}, "lifo"),
        ("fifo", {"staleness": 1}, "staleness"),
        ("fifo", {"knobs": {"speed": 3}}, "speed"),
        ("ddp", {"knobs": {"bucket_bytes": "big"}}, "bucket_bytes"),
        ("fifo", {"iterations": 0}, "iterations"),
        ("fifo", {"jitter": -1}, "jitter"),
    ],
)
def test_misuse_is_refused(policies: Any, options: dict[str, Any], named: str) -> None:
    """With the name of what is wrong."""
    with pytest.raises(InvalidOptions, match=named):
        pace.simulate(PROFILE, policies, SimulationOptions(**options))


untyped: Any = pace  # as in code that no type checker reads


@pytest.mark.parametrize(
    "misuse",
    [
        lambda: untyped.Options("x"),
        lambda: untyped.Options(fusion="all"),
        lambda: untyped.Options(nothing=1),
        lambda: untyped.SimulationOptions("x"),
        lambda: untyped.Profile("x"),
        lambda: untyped.Op(duration_s=-1),
        lambda: untyped.Gradient("x"),
        lambda: untyped.Schedule("x"),
        lambda: untyped.Cluster("x"),
        lambda: untyped.optimize("x"),
        lambda: untyped.optimize(PROFILE, "x"),
        lambda: untyped.simulate("x"),
        lambda: untyped.simulate(PROFILE, "fifo", "x"),
        lambda: untyped.check("x", "x"),
        lambda: untyped.what_if("x", pace.Grid()),
        lambda: untyped.make_policy("lifo"),
        lambda: untyped.load_profile(3),
        lambda: untyped.load_schedule(3),
        lambda: untyped.parse_schedule(3),
        lambda: untyped.parse_profile(3),
        lambda: untyped.parse_steps(3),
        lambda: untyped.load_steps(3),
        lambda: untyped.load_cluster(3),
        lambda: untyped.simulate(PROFILE, 3),
        lambda: untyped.simulate(PROFILE, [1]),
        lambda: untyped.what_if(PROFILE, None),
        lambda: untyped.Grid(bandwidth_gbps=3),
        lambda: untyped.Grid(policies=(1,)),
        lambda: untyped.Grid(workers_per_node="x"),
        lambda: untyped.StepsDocument("x"),
        lambda: PROFILE.replace(workers=-1),
    ],
)
def test_every_misuse_ends_in_an_error_of_ours(misuse: Any) -> None:
    """So that one except clause is enough."""
    with pytest.raises(pace.PaceError):
        misuse()
