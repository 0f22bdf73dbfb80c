"""Plans under load: late ranks, calls that take longer while compute runs, and the bound that stays true."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.studies.under_load import LateRanks, on_network, with_slower_calls
from pace import Options, Profile, check, load_profile, optimize
from pace.documents.load import Load
from pace.documents.profile import parse_profile
from pace.errors import InvalidProfile
from pace.simulation import run_policy
from pace.simulation.registry import make_policy
from pace.simulation.scheduled import Following
from tests.strategies import affine, layered, profiles, properties


@st.composite
def loads(draw: st.DrawFn) -> Load:
    """Draw extra times by size; some for small calls only."""
    sizes = sorted(draw(st.sets(st.integers(1, 100), min_size=1, max_size=3)))
    seconds = [draw(st.floats(0, 3)) for _ in sizes]
    return Load(delta=tuple(zip(sizes, seconds, strict=True)), sigma={})


@given(profiles(), loads(), st.floats(1, 2))
@properties(100)
def test_the_simulator_and_the_checker_agree_with_a_stated_load(
    profile: Profile, load: Load, slowdown: float
) -> None:
    """Also where traffic slows compute down: the same window, no violation, and a bound below it."""
    profile = profile.replace(load=load, compute_slowdown=slowdown)
    schedule = optimize(profile)
    assert check(profile, schedule) == []
    simulated = run_policy(profile, Following(schedule=schedule)).iteration_s
    assert simulated == pytest.approx(schedule.predicted.iteration_s, rel=1e-9)
    assert parse_profile(profile.to_json()) == profile


@given(profiles(), loads())
@properties(100)
def test_no_policy_beats_the_bound_with_extra_time(profile: Profile, load: Load) -> None:
    """The bound counts the extra time of one call; every policy pays at least that."""
    profile = profile.replace(load=load)
    bound = optimize(profile).predicted.lower_bound_s
    for name in ("fifo", "ddp", "p3", "bytescheduler", "tao"):
        assert run_policy(profile, make_policy(name)).iteration_s >= bound * (1 - 1e-9)


def test_extra_time_by_hand() -> None:
    """Two layers of 1 s each way; calls take 1 s, and 0.5 s longer while compute runs.

    The second layer's call runs from 1 to 2.5 s, beside compute until 2 s. The first layer's starts when
    compute has ended, so it takes 1 s. Then both layers' forward ops follow.
    """
    profile = layered([1, 1], allreduce=affine(1, 0)).replace(load=Load(delta=((1, 0.5),), sigma={}))
    schedule = optimize(profile, Options(fusion="none"))
    assert [(each.start_s, each.end_s) for each in schedule.transfers] == [(1.0, 2.5), (2.5, 3.5)]
    assert schedule.predicted.iteration_s == 5.5


def test_the_bound_counts_extra_time_once() -> None:
    """Ready at 1 s of a backward pass of 4 s, with a call of 8 s and a tail of 2 s: 1 + 0.5 + 8 + 2."""
    profile = layered([1, 0], allreduce=affine(8, 0), backward_s=[3.0, 1.0], forward_s=[1.0, 1.0])
    loaded = profile.replace(load=Load(delta=((1, 0.5),), sigma={}))
    before, after = optimize(profile).predicted, optimize(loaded).predicted
    assert after.lower_bound_s - before.lower_bound_s in (0.0, 0.5)
    assert check(loaded, optimize(loaded)) == []


def test_a_bound_that_counts_too_much_is_refused() -> None:
    """The checker derives the extra time again."""
    profile = layered([4, 4, 4], allreduce=affine(1, 1)).replace(load=Load(delta=((1, 0.5),), sigma={}))
    schedule = optimize(profile)
    assert schedule.bound is not None
    more = schedule.bound.model_copy(
        update={"extra_s": schedule.bound.extra_s + 0.6, "bound_s": schedule.bound.bound_s + 0.6}
    )
    assert any("extra_s" in fault for fault in check(profile, schedule.model_copy(update={"bound": more})))


@pytest.mark.parametrize("kind", ["op", "rank"])
@pytest.mark.parametrize("model", ["resnet50", "transformer"])
def test_plans_hold_under_load(model: str, kind: str) -> None:
    """Of fast and slow networks: no plan is slower than DDP, or more than 3 % than one for slower calls.

    Judged by windows of late ranks that share no code with the planner.
    """
    for workers, latency_s, gbit_per_s in [(8, 5e-6, 400), (64, 3e-4, 40), (8, 5e-5, 100), (64, 5e-6, 400)]:
        profile = on_network(model, workers=workers, latency_s=latency_s, gbit_per_s=gbit_per_s)
        judge = LateRanks(profile, kind=kind, extra_s=(1e-3, 1.5e-3))
        ddp_s = judge.ddp_s(profile)
        planned_s = judge.of_schedule(optimize(profile), profile)
        slow = with_slower_calls(profile, 1.25e-3)
        assert planned_s <= ddp_s * 1.0001
        assert planned_s <= judge.of_schedule(optimize(slow), profile) * 1.03


@pytest.mark.parametrize(("workers", "gbit_per_s"), [(8, 40), (64, 10)])
def test_more_search_makes_no_plan_of_mixed_types_worse(workers: int, gbit_per_s: float) -> None:
    """Every third gradient is of another type: faster than DDP, and than one call a run of one type.

    Judged by windows of late ranks that share no code with the planner.
    """
    profile = on_network("resnet50", workers=workers, latency_s=5e-5, gbit_per_s=gbit_per_s)
    profile = profile.replace(
        gradients=tuple(
            gradient.model_copy(update={"dtype": "int32"}) if number % 3 == 0 else gradient
            for number, gradient in enumerate(profile.gradients)
        )
    )
    judge = LateRanks(profile, kind="rank", extra_s=(1e-3, 1.5e-3))
    ddp_s = judge.ddp_s(profile)
    found_s = [
        judge.of_schedule(optimize(profile, Options(search_calls=calls)), profile)
        for calls in (100, 2000, 20_000)
    ]
    assert max(found_s) < ddp_s
    assert found_s[1] <= found_s[0] * 1.005
    assert found_s[2] <= found_s[1] * 1.005


def test_the_curve_ends_at_the_least_expected_window() -> None:
    """More calls only where they gain; the plan's own window is within the tie of its end, DDP's above it."""
    profile = on_network("resnet50", workers=8, latency_s=5e-5, gbit_per_s=40)
    schedule = optimize(profile)
    predicted = schedule.predicted
    calls, expected_s = zip(*schedule.solver.curve, strict=True)
    assert list(calls) == sorted(set(calls))
    assert list(expected_s) == sorted(expected_s, reverse=True)
    assert calls[0] <= 3
    assert predicted.expected_s is not None
    assert predicted.ddp_s is not None
    assert expected_s[-1] <= predicted.expected_s <= expected_s[-1] * 1.002
    assert predicted.ddp_s > predicted.expected_s
    assert predicted.expected_s >= predicted.lower_bound_s


def test_expected_windows_are_derived_again() -> None:
    """The checker replays PACE's calls and DDP's buckets itself."""
    profile = on_network("resnet50", workers=8, latency_s=5e-5, gbit_per_s=40)
    schedule = optimize(profile)
    assert check(profile, schedule) == []
    for field in ("expected_s", "ddp_s"):
        seconds = getattr(schedule.predicted, field)
        predicted = schedule.predicted.model_copy(update={field: seconds * 1.001})
        (fault,) = check(profile, schedule.model_copy(update={"predicted": predicted}))
        assert field in fault


def test_late_ranks_make_the_expected_window_longer() -> None:
    """The more ranks, and the farther apart they are."""
    profile = load_profile("examples/profiles/resnet50.json")
    last = profile.ops[-1].name

    def expected_s(workers: int, sigma_s: float) -> float:
        with_load = profile.replace(workers=workers, load=Load(delta=(), sigma={last: sigma_s}))
        seconds = optimize(with_load).predicted.expected_s
        assert seconds is not None
        return seconds

    assert expected_s(8, 0.0) < expected_s(8, 0.01) < expected_s(64, 0.01) < expected_s(64, 0.02)


def test_the_95th_percentile_is_above_the_mean() -> None:
    """Of the same plan's windows, where ranks are late."""
    profile = load_profile("examples/profiles/transformer.json")
    mean, tail = (optimize(profile, Options(risk=risk)).predicted.expected_s for risk in ("mean", "p95"))
    assert mean is not None
    assert tail is not None
    assert tail > mean


@pytest.mark.parametrize(
    ("load", "named"),
    [
        ({"delta": [[10, 1], [10, 2]]}, "rising order"),
        ({"delta": [[0, 1]]}, "delta"),
        ({"delta": [[1, -1]]}, "delta"),
        ({"sigma": {"no such op": 1}}, "no such op"),
        ({"sigma": {"bwd/0": float("nan")}}, "sigma"),
        ({"gamma": 1}, "gamma"),
    ],
)
def test_a_load_that_means_nothing_is_refused(load: dict[str, object], named: str) -> None:
    """In one line that names the field."""
    document = layered([1], allreduce=affine(1, 1)).model_dump(mode="json") | {"load": load}
    with pytest.raises(InvalidProfile, match=named):
        parse_profile(json.dumps(document))
