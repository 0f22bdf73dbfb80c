"""Sharded plans under load: fewer calls where each takes longer, judged and derived by other code."""

import numpy as np
import pytest

from benchmarks.studies.under_load import LateRanks, on_network, with_slower_calls
from pace import Options, Profile, check, optimize
from pace.documents.load import NO_LOAD, Load
from pace.documents.profile import UpdateRule
from pace.documents.schedule import Schedule

SHARDED = Options(exchange="sharded")
UPDATES: tuple[UpdateRule, ...] = ("global-norm", "per-gradient")


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("model", ["resnet50", "bert-large"])
def test_sharded_plans_hold_under_load(model: str, update: UpdateRule) -> None:
    """On fast networks: at most 1 % slower than plans for slower calls, which without load they would not be.

    Judged by windows of late ranks that share no code with the planner.
    """
    gains = []
    for workers, latency_s, gbit_per_s in [(8, 5e-6, 400), (64, 3e-4, 400), (64, 5e-5, 100), (8, 5e-5, 10)]:
        built = on_network(model, workers=workers, latency_s=latency_s, gbit_per_s=gbit_per_s)
        profile = built.replace(update=update)
        judge = LateRanks(profile, kind="op", extra_s=(1e-3, 1.5e-3))
        planned_s, slower_s, alone_s = (
            judge.of_schedule(optimize(each, SHARDED), profile)
            for each in (profile, with_slower_calls(profile, 1.25e-3), profile.replace(load=NO_LOAD))
        )
        assert planned_s <= slower_s * 1.01
        assert planned_s <= alone_s * 1.001
        gains.append(alone_s / planned_s)
    assert max(gains) > 1.03


@pytest.mark.parametrize("update", UPDATES)
def test_expected_windows_of_sharded_plans_are_derived_again(update: UpdateRule) -> None:
    """The checker replays both halves and the norm: assumed, stated, on slow compute, of several types."""
    built = on_network("resnet50", workers=8, latency_s=5e-5, gbit_per_s=100).replace(update=update)
    last = built.ops[-1].name
    changed = [
        gradient.model_copy(update={"dtype": "int32"} if number % 3 == 0 else {})
        for number, gradient in enumerate(built.gradients)
    ]
    empty = [*changed[:5], changed[5].model_copy(update={"size_bytes": 0}), *changed[6:]]
    profiles: list[Profile] = [
        built,
        built.replace(compute_slowdown=1.3),
        built.replace(gradients=tuple(empty)),
        built.replace(load=Load(delta=((1, 2e-3), (1 << 20, 3e-3)), sigma={last: 0.01})),
        built.replace(load=Load(delta=None, sigma={last: 0.01})),
    ]
    for profile in profiles:
        for risk in ("mean", "p95"):
            schedule = optimize(profile, Options.model_validate({"exchange": "sharded", "risk": risk}))
            assert check(profile, schedule) == []
            _refuses_other_windows(profile, schedule)


def _refuses_other_windows(profile: Profile, schedule: Schedule) -> None:
    for field in ("expected_s", "ddp_s"):
        seconds = getattr(schedule.predicted, field)
        predicted = schedule.predicted.model_copy(update={field: seconds * 1.001})
        (fault,) = check(profile, schedule.model_copy(update={"predicted": predicted}))
        assert field in fault


@pytest.mark.parametrize("update", UPDATES)
def test_load_changes_no_bound_and_no_prediction_of_the_same_calls(update: UpdateRule) -> None:
    """An assumption decides between plans; the bound is that without load, and the curve falls."""
    profile = on_network("transformer", workers=8, latency_s=5e-6, gbit_per_s=400).replace(update=update)
    assumed, alone = (optimize(each, SHARDED) for each in (profile, profile.replace(load=NO_LOAD)))
    assert assumed.predicted.lower_bound_s == pytest.approx(alone.predicted.lower_bound_s, rel=1e-12)
    assert assumed.predicted.iteration_s >= alone.predicted.iteration_s * (1 - 1e-9)
    assert "without load, a plan that is worse under load takes" in assumed.solver.method
    assert len(assumed.transfers) < len(alone.transfers)
    calls, expected_s = zip(*assumed.solver.curve, strict=True)
    assert list(calls) == sorted(set(calls))
    assert np.all(np.diff(expected_s) < 0)
    assert assumed.predicted.expected_s is not None
    assert expected_s[-1] <= assumed.predicted.expected_s <= expected_s[-1] * 1.002


def test_one_rank_sends_under_no_load() -> None:
    """Alone there is nothing to wait for: the window is compute, whatever the load."""
    profile = on_network("resnet50", workers=1, latency_s=5e-5, gbit_per_s=100).replace(
        update="global-norm", load=Load(delta=((1, 1e-3),), sigma={})
    )
    schedule = optimize(profile)
    assert schedule.predicted.expected_s == pytest.approx(schedule.predicted.compute_s, rel=1e-9)
    assert check(profile, schedule) == []
