"""Every contender trains on real hosts and arrives at the same weights; a wrong one is disqualified."""

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.harness.contenders import ALLREDUCE, BY_NAME, CLIPPING, FRAMEWORKS, Contender
from benchmarks.harness.contest import Contest, Costs
from benchmarks.harness.layouts import Layout
from benchmarks.harness.measure import Effort, measure
from benchmarks.harness.network.hosts import Host
from benchmarks.harness.network.processes import ranks
from benchmarks.harness.prediction import schedule_for
from benchmarks.harness.prerequisites import RankFailed
from benchmarks.harness.results import as_document, from_document, windows_of
from benchmarks.harness.training import trainer
from benchmarks.harness.workload.replay import TOLERANCE, expected_weights, norm_to_clip_to, renamed
from benchmarks.harness.workload.scaling import Fitted
from pace.documents.profile import Profile, UpdateRule
from pace.documents.schedule import Schedule
from tests.runtime.frameworks.programs import without

pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.races_with_machine(
        reason="real processes on network namespaces must answer within their time-outs"
    ),
]


def _parameters() -> Iterator[Any]:
    for clip, contenders in ((False, ALLREDUCE), (True, [BY_NAME[name] for name in CLIPPING])):
        for each in contenders:
            marks = [pytest.mark.horovod] if each.backend == "horovod" else []
            yield pytest.param(each, clip, id=f"{each.name}{'-clipping' if clip else ''}", marks=marks)


@pytest.mark.parametrize(("contender", "clip"), list(_parameters()))
def test_contenders_train_alike(
    two_hosts: list[Host], ports: Iterator[int], layered: Profile, contender: Contender, clip: bool
) -> None:
    """After a warm-up and a restart, weights are the reference's, to the bit the same on both ranks."""
    if contender.backend == "horovod" and importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")
    update: UpdateRule = "global-norm" if clip else "per-gradient"
    schedule = schedule_for(contender, renamed(layered).replace(update=update), 1.0)
    max_norm = norm_to_clip_to(layered) if clip else None
    workload = trainer.Workload(profile=layered, size_factor=1.0, max_norm=max_norm)
    job = trainer.Job(
        on=two_hosts,
        layout=Layout(2),
        contender=contender,
        workload=workload,
        schedule=schedule,
        port=next(ports),
    )
    expected = expected_weights(layered, workers=2, iterations=6, max_norm=max_norm)
    if clip:  # or nothing is tested: the same without clipping is something else
        assert abs(expected - expected_weights(layered, workers=2, iterations=6)).max() > 100 * TOLERANCE
    with ranks(contender.name, two_hosts, trainer.main, job, environment=contender.environment) as group:
        group.ask("join", group.ask("serve")[0])
        if contender.kind == "ddp-sweep":
            group.ask("use_bucket_size", 1.0)
        group.ask("train", 3)
        group.ask("restart")
        starts = [group.ask("train", 4), group.ask("train", 2)]
        checks = group.ask("check_weights", expected)
    assert [len(own) for own in starts[0] + starts[1]] == [4, 4, 2, 2]
    assert len({check.sha256 for check in checks}) == 1
    assert max(check.largest_error for check in checks) < TOLERANCE


def contest_of(on: list[Host], profile: Profile) -> Contest:
    """Return a setting of two workers that replay a profile."""
    return Contest(
        on=on,
        layout=Layout(2),
        model="layered",
        ratio=1.0,
        fitted=Fitted(profile=profile, time_factor=1.0, size_factor=1.0),
        costs=Costs(allreduce={"torch": profile.allreduce}),
    )


def test_one_setting_end_to_end(
    two_hosts: list[Host], layered: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting gives times, predictions and weights for each contender; one that trains wrong is out."""
    real = trainer.Trainer.restart

    def forgetful(self: Any) -> None:
        real(self)
        if self._contender.name == "pace-static":
            self._iteration = 1  # its first input is not what the others' was

    monkeypatch.setattr(trainer.Trainer, "restart", forgetful)
    said: list[str] = []
    result = measure(
        contest_of(two_hosts, layered),
        [BY_NAME[name] for name in ("ddp", "ddp-best", "pace-adaptive", "pace-static")],
        Effort(rounds=2, windows=2, bucket_sizes_mib=(0.0001, 1.0)),
        said.append,
    )
    ddp, best, adaptive, wrong = result.contenders
    assert [len(windows) for each in (ddp, best, adaptive) for windows in each.rounds_s] == [2] * 6
    assert all(each.counts for each in (ddp, best, adaptive))
    assert best.sweep_s is not None
    assert f"{best.bucket_mib:g}" == min(best.sweep_s, key=best.sweep_s.__getitem__)
    assert not wrong.counts
    assert wrong.disqualified is not None
    assert "weights are off" in wrong.disqualified
    assert said == [f"pace-static: {wrong.disqualified}"]
    assert result.best_pace is adaptive
    assert from_document(as_document(result)) == result


@without("lightning", "accelerate")
def test_frameworks_train_alike(two_hosts: list[Host], layered: Profile) -> None:
    """A real Trainer and a real Accelerator, asked for iterations in turns, have the reference's weights."""
    result = measure(contest_of(two_hosts, layered), FRAMEWORKS, Effort(rounds=2, windows=2), lambda _: None)
    assert all(each.counts for each in result.contenders)
    assert all([len(windows) for windows in each.rounds_s] == [2, 2] for each in result.contenders)


def _reversed(schedule: Schedule | None) -> Schedule | None:
    return schedule and schedule.model_copy(update={"fingerprint": schedule.fingerprint[::-1]})


def test_a_contender_that_dies_leaves_the_others(two_hosts: list[Host], layered: Profile) -> None:
    """A schedule that does not fit fails its contender alone, with the reason."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "benchmarks.harness.measure.schedule_for",
            lambda contender, profile, factor: _reversed(schedule_for(contender, profile, factor)),
        )
        result = measure(
            contest_of(two_hosts, layered),
            [BY_NAME["pace-static"], BY_NAME["ddp"]],
            Effort(rounds=1, windows=2),
            lambda _: None,
        )
    assert [each.counts for each in result.contenders] == [False, True]
    assert "ScheduleMismatch" in str(result.contenders[0].disqualified)


def test_windows_reach_from_the_last_rank_to_the_last_rank() -> None:
    """A window begins when the slowest rank begins it."""
    assert windows_of([[0.0, 1.0, 3.0], [0.5, 1.25, 2.0]]) == [0.75, 1.75]


def test_failures_keep_their_reason() -> None:
    """What a rank raised is the last line of the failure."""
    assert str(RankFailed("a\nb")).splitlines()[-1] == "b"
