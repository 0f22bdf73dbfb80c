"""Plans searched for while real ranks train: the same steps for all, the right weights, and a winner."""

from typing import Any

import pytest

from pace.errors import InvalidOptions
from pace.runtime.control.live_search import LEAST_BYTES
from pace.runtime.options import AllReduce, Plan, Tune
from pace.solver.knob_search import SEARCHES
from tests.runtime.control.tuned_jobs import MOST_STEPS, Diary, tune_job
from tests.runtime.launch import run_ranks
from tests.runtime.models import build
from tests.runtime.training import OPTIMIZERS, Case, difference, equal_bits, train_plainly, trainable

TRIALS, ITERATIONS = 5, 2
BYTESCHEDULER: Any = ("partition", "credit")


def jobs(rank: int, _size: int, backend: str, given: list[dict[str, Any]]) -> list[Diary]:
    """Run one job after the other in the same processes."""
    return [tune_job(rank, backend, {"timeout_s": 60.0, **options}) for options in given]


def assert_tuned_together(first: Diary, second: Diary, trials: int) -> None:
    """Both ranks changed plans after the same steps, and have the weights of plain training."""
    assert first.plans == second.plans
    assert first.mode == second.mode
    assert first.mode in first.measured_s
    assert first.measured_s == second.measured_s
    assert "plain" in first.measured_s
    assert len(first.measured_s) > 1
    assert (first.events["pace.tuning"], first.events["pace.tuning_trial"]) == (1, trials)
    assert second.events["pace.tuning"] == 0
    assert first.events["pace.tuning_failed"] == 0
    assert first.steps == second.steps < MOST_STEPS
    assert equal_bits(first.trained, second.trained)
    expected = train_plainly(Case(steps=first.steps), 2)
    assert difference(first.trained, expected) <= 1e-3


def tunes() -> list[Tune]:
    """Return every method, and ByteScheduler's own knobs."""
    pytest.importorskip("bayes_opt")
    common: dict[str, Any] = {"num_trials": TRIALS, "iterations": ITERATIONS}
    return [Tune(method=method, **common) for method in SEARCHES] + [Tune(knobs=BYTESCHEDULER, **common)]


def test_every_method_over_all_reduces() -> None:
    """Two real Gloo ranks, one job for each method."""
    given = tunes()
    first, second = run_ranks(jobs, 2, "gloo", [{"plan": tune} for tune in given])
    for tune, one, other in zip(given, first, second, strict=True):
        expected = 4 if tune.method == "grid" else TRIALS
        assert_tuned_together(one, other, expected)
        if tune.knobs == BYTESCHEDULER:
            assert {entry["group_bytes"] for entry in one.tried} == {1}
            assert {entry["order"] for entry in one.tried} == {"priority"}


def test_a_search_begins_where_theory_says() -> None:
    """At the size that follows from what the network costs, or the nearest that the model has."""
    pytest.importorskip("bayes_opt")
    tune = Tune(num_trials=1, iterations=1, knobs=BYTESCHEDULER)
    (one,), (other,) = run_ranks(jobs, 2, "gloo", [{"plan": tune, "mode": "barrier"}])
    assert_tuned_together(one, other, 1)
    (tried,) = one.tried
    total = sum(array.nbytes for array in one.trained.values())
    assert one.start_bytes > 0
    assert tried["partition_bytes"] == pytest.approx(min(max(one.start_bytes, LEAST_BYTES), total), rel=0.01)


@pytest.mark.horovod
def test_over_horovod() -> None:
    """The same over the other transport."""
    pytest.importorskip("horovod")
    tune = Tune(method="random", num_trials=3, iterations=1)
    (one,), (other,) = run_ranks(jobs, 2, "horovod", [{"plan": tune}], backend="horovod")
    assert_tuned_together(one, other, 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "luck"}, "method"),
        ({"method": "random", "knobs": ()}, "knobs"),
        ({"method": "random", "knobs": "order"}, "knobs"),
        ({"method": "random", "knobs": ("speed",)}, "knobs"),
        ({"method": "random", "num_trials": 0}, "num_trials"),
        ({"method": "random", "iterations": 0}, "iterations"),
        ({"method": "random", "seed": -1}, "seed"),
        ({"method": "random", "service": "http://x"}, "Plan"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any], message: str) -> None:
    """By name."""
    with pytest.raises(InvalidOptions, match=message):
        Tune(**wrong)


def refused(_rank: int, _size: int, given: list[dict[str, Any]]) -> list[str]:
    """Return what each job says to its options."""
    import pace.runtime.torch

    found = []
    for options in given:
        model = build("conv")
        plain = OPTIMIZERS["sgd"](trainable(model))
        with pytest.raises(InvalidOptions) as raised:
            pace.runtime.torch.DistributedOptimizer(plain, model, **options)
        found.append(str(raised.value))
    return found


def unlike(rank: int, _size: int) -> str:
    """Return what is said where ranks tune differently."""
    plan = Tune(method="random") if rank else Plan()
    return refused(rank, 2, [{"plan": plan}])[0]


def test_jobs_that_cannot_be_tuned_are_refused() -> None:
    """Sharded updates; and ranks that differ."""
    tune = Tune(method="random")
    given: list[dict[str, Any]] = [
        {"plan": tune, "communication": AllReduce(sharding="on")},
        {"plan": "schedule.json"},
    ]
    for sharded, other in run_ranks(refused, 2, given):
        assert "sharding" in sharded
        assert "Tune" in other
    for said in run_ranks(unlike, 2):
        assert "tuning" in said
