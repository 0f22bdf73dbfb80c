"""``pace_servers.predict``: scales, knees, bottlenecks, advice, and when not to trust it."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

import pace_servers
from pace import InvalidOptions, PaceError, StepsDocument, load_steps
from pace.documents.steps import StepLink, StepTimes
from pace_servers import Fleet, PredictionOptions, predict
from pace_servers.throughput.prediction import dips_of, knee_of
from pace_servers.throughput.recorded_steps import replay_error
from tests.pace.documents.step_documents import MB, pull_compute_push

untyped: Any = pace_servers  # as in code that no type checker reads
QUICK = {"steps": 60, "skip": 10, "seeds": 3}


def varied(compute_s: float = 3.0) -> StepsDocument:
    """Return steps of 1 s down, some compute that varies, and 1 s up."""
    base = pull_compute_push(update_s=0.0)
    times = (0.6, 0.8, 1.0, 1.3, 1.3)
    steps = tuple(StepTimes(duration_s=(0, compute_s * scale, 0, 0)) for scale in times)
    return base.replace(steps=steps, batch=16.0)


def test_throughput_rises_to_the_links_limit() -> None:
    """Below the knee workers limit, beyond it the link does; bands and bounds stand around the mean."""
    result = predict(varied(), PredictionOptions(workers=(1, 2, 4, 8, 16), **QUICK))
    points = result.points
    assert points[0].throughput == pytest.approx(16 / 5, rel=0.05)
    assert points[0].bottleneck == "workers"
    assert points[-1].bottleneck in ("server 0 downlink", "server 0 uplink")
    assert points[-1].throughput == pytest.approx(16, rel=0.12)
    for point in points:
        assert point.low <= point.throughput <= point.high
        assert point.throughput <= point.coarse.bound * 1.1
        assert sum(share.share for share in point.staleness) == pytest.approx(1)
        assert point.mean_staleness == pytest.approx(point.workers - 1, abs=0.15)
        assert len(point.links) == 2 + 2 * point.workers
    (curve,) = result.curves
    assert curve.knee_workers in (4, 8)
    assert curve.balance_workers == pytest.approx(5)
    assert result.unit == "examples"


def test_advice_names_what_helps() -> None:
    """A faster link helps where it is saturated, faster compute where the link is idle."""
    saturated = predict(varied(1.0), PredictionOptions(workers=(8,), **QUICK)).curves[0].improvements
    gains = {better.change: better.gain for better in saturated}
    assert gains["links twice as fast"] > 0.5
    assert gains["one more worker"] < 0.1
    assert abs(gains["compute twice as fast"]) < 0.1
    idle = predict(varied(30.0), PredictionOptions(workers=(2,), **QUICK)).curves[0].improvements
    gains = {better.change: better.gain for better in idle}
    assert gains["compute twice as fast"] > 0.7
    assert gains["one more worker"] == pytest.approx(0.5, abs=0.1)
    assert gains["links twice as fast"] < 0.1


def test_advice_is_for_the_workers_that_the_caller_has() -> None:
    """With a band from the same seeds on both sides; the knee is where it was."""
    options = PredictionOptions(workers=(1, 2, 4, 8, 16), at_workers=2, **QUICK)
    (curve,) = predict(varied(), options).curves
    assert curve.at_workers == 2
    assert curve.knee_workers in (4, 8)
    for better in curve.improvements:
        assert better.low <= better.gain <= better.high
    (more,) = (better for better in curve.improvements if better.change == "one more worker")
    assert more.gain == pytest.approx(0.5, abs=0.15)


def test_a_change_that_makes_it_slower_is_explained() -> None:
    """Faster compute lets these workers fall in step."""
    steps = load_steps(Path(pace_servers.__file__).parent / "service" / "web" / "examples" / "steps.json")
    result = predict(steps, PredictionOptions(workers=(8,), at_workers=8))
    slower = [each.change for each in result.curves[0].improvements if each.gain < 0]
    assert slower == ["compute twice as fast"]
    (said,) = (note for note in result.notes if "fall in step" in note)
    assert said.startswith("with 8 workers, compute twice as fast makes the simulated training slower")


def test_a_dip_of_lock_step_is_named_and_ends_no_curve() -> None:
    """Two workers that share a link in step gain little; more of them drift apart and gain again."""
    (point,) = predict(varied(), PredictionOptions(workers=(1,), advice=False, **QUICK)).points
    rates = {1: 10.0, 2: 11.0, 4: 28.0, 8: 32.0, 16: 32.5}
    curve = [point.model_copy(update={"workers": w, "throughput": rate}) for w, rate in rates.items()]
    assert knee_of(curve) == 4
    assert list(dips_of(curve)) == [2]
    assert knee_of(curve[:3]) is None


def test_same_question_same_answer() -> None:
    """For any number of threads, and every point is told of."""
    options = PredictionOptions(workers=(1, 3), bandwidth_gbps=(0.1, 0.2), advice=False, **QUICK)
    told: list[int] = []
    first = predict(varied(), options, threads=1, progress=told.append)
    assert first == predict(varied(), options, threads=3)
    assert sum(told) == options.num_points == 4
    assert [point.bandwidth_gbps for point in first.points] == pytest.approx([0.1, 0.1, 0.2, 0.2])
    rows = list(csv.DictReader(io.StringIO(first.to_csv())))
    assert [int(row["workers"]) for row in rows] == [1, 3, 1, 3]
    assert float(rows[3]["throughput"]) == first.points[3].throughput


def test_spread_and_its_size_come_from_one_place() -> None:
    """A spread that is given is not taken for one of the size that the document's was measured with."""
    shared = {"share_spread": 0.005, "share_spread_bytes": 10**9}
    steps = varied().replace(link=varied().link.model_copy(update=shared))
    plain = varied()
    options = PredictionOptions(workers=(4,), advice=False, share_spread=0.1, **QUICK)
    assert predict(steps, options).points == predict(plain, options).points
    recorded = options.model_copy(update={"share_spread": None})
    assert predict(steps, recorded).points != predict(plain, recorded).points
    given = options.model_copy(update={"share_spread": 0.005, "share_spread_bytes": 10**9})
    assert predict(steps, recorded).points == predict(plain, given).points


def test_a_size_needs_the_spread_that_was_measured_with_it() -> None:
    """The default was measured with another size."""
    with pytest.raises(ValueError, match="give both"):
        PredictionOptions(share_spread_bytes=3_000_000)
    with pytest.raises(ValueError, match="give both"):
        StepLink(bytes_per_s=1.0, share_spread_bytes=3_000_000)


def test_other_servers_are_flagged() -> None:
    """A second server is an extrapolation, in its point and in the notes."""
    result = predict(varied(), PredictionOptions(workers=(2,), servers=(1, 2), advice=False, **QUICK))
    assert [point.extrapolated for point in result.points] == [False, True]
    assert any("extrapolated" in note for note in result.notes)


def test_workers_that_stay_in_step_are_told_of() -> None:
    """Steps that do not vary keep workers together for ever if shares are equal and they start together."""
    options = PredictionOptions(workers=(2,), advice=False, share_spread=0.0, **QUICK)
    together = predict(pull_compute_push(), options)
    assert any("lock step, and real" in note for note in together.notes)
    apart = options.model_copy(update={"fleet": Fleet(join_s=(0.0, 1.0))})
    found = predict(pull_compute_push(), apart)
    assert not any("lock step, and real" in note for note in found.notes)
    assert found.points[0].throughput > 1.4 * together.points[0].throughput
    assert not any("lock step, and real" in note for note in predict(varied(), options).notes)
    unequal = options.model_copy(update={"share_spread": None})
    assert not any("lock step, and real" in note for note in predict(pull_compute_push(), unequal).notes)


def test_scales_at_which_runs_differ_are_told_of() -> None:
    """Some runs leave lock-step early, some late: a mean says little there, and nothing is told elsewhere."""
    options = PredictionOptions(workers=(1, 2, 6), advice=False, steps=60, skip=20, seeds=8)
    result = predict(pull_compute_push(), options)
    alone, two, six = result.points
    assert alone.low == pytest.approx(alone.high)
    assert two.high < 1.2 * two.low
    assert six.high > 1.2 * six.low
    assert any(note.startswith("simulations of 6 workers differ") for note in result.notes)


def recorded(bytes_per_s: float) -> StepsDocument:
    """Return steps that say when ops started, as they would be at 10 MB/s, with another rate of the link."""
    base = pull_compute_push(update_s=0.5)
    step = StepTimes(duration_s=(1, 1, 1, 0.5), start_s=(0, 1, 2, 3))
    return base.replace(steps=(step,) * 3, link=base.link.model_copy(update={"bytes_per_s": bytes_per_s}))


def test_a_replay_that_fails_is_not_trusted() -> None:
    """With the right rate, the simulation repeats the recording; with a wrong one, it says so."""
    options = PredictionOptions(workers=(1,), advice=False, **QUICK)
    right = predict(recorded(10.0 * MB), options)
    assert right.replay_error == pytest.approx(0.0, abs=1e-9)
    assert right.trusted == "simulation"
    wrong = predict(recorded(40.0 * MB), options)
    assert wrong.replay_error == pytest.approx(1.5 / 3.5)
    assert wrong.trusted == "neither"
    assert any("imply about 1e+07 bytes/s (0.08 Gbit/s) instead of 4e+07" in note for note in wrong.notes)
    assert predict(recorded(5.0 * MB), options).trusted == "neither"
    assert replay_error(pull_compute_push()) is None


def test_a_wrong_rate_is_found_behind_compute() -> None:
    """Half of the right rate hides behind one worker's compute, where the replay is exact."""
    base = recorded(10.0 * MB)
    step = StepTimes(duration_s=(1, 9, 1, 0.5), start_s=(0, 0, 9, 10))
    ops = tuple(op.model_copy(update={"deps": ()}) if op.resource == "worker" else op for op in base.ops)
    hidden = base.replace(ops=ops, steps=(step,) * 3)
    options = PredictionOptions(workers=(1,), advice=False, **QUICK)
    assert predict(hidden, options).trusted == "simulation"
    wrong = hidden.replace(link=base.link.model_copy(update={"bytes_per_s": 8.0 * MB}))
    assert predict(wrong, options).trusted == "neither"


def test_the_closed_network_is_trusted_where_the_rate_is_right() -> None:
    """Links were busy for as long as their bytes need, but compute began 0.5 s later than replayed."""
    base = recorded(10.0 * MB)
    step = StepTimes(duration_s=(1, 1, 1, 0.5), start_s=(0, 1.5, 2.5, 3.5))
    result = predict(base.replace(steps=(step,) * 3), PredictionOptions(workers=(1,), advice=False, **QUICK))
    assert result.replay_error == pytest.approx(0.5 / 4)
    assert result.trusted == "closed_network"
    assert any("rely on the closed network" in note for note in result.notes)


def test_a_fleet_and_a_discipline() -> None:
    """Faster workers do more steps; a window needs its bytes."""
    options = PredictionOptions(workers=(2,), fleet=Fleet(speed=(1.0, 3.0)), advice=False, **QUICK)
    alone = predict(varied(30.0), options).points[0].throughput
    assert alone == pytest.approx(16 * (1 / 32 + 1 / 12), rel=0.1)
    with pytest.raises(InvalidOptions, match="window in bytes"):
        predict(varied(), PredictionOptions(discipline="window"))
    windowed = PredictionOptions(workers=(1,), discipline="window", window_bytes=MB, advice=False, **QUICK)
    assert predict(varied(), windowed).points[0].throughput == pytest.approx(16 / 5, rel=0.05)


@pytest.mark.parametrize("discipline", ["fifo", "adaptive", "tic", "reverse", "random"])
def test_every_discipline_carries_all_bytes(discipline: str) -> None:
    """One transfer at a time: the order of streams does not change a lone worker's pull."""
    options = PredictionOptions.model_validate(
        {"workers": (1,), "discipline": discipline, "advice": False, **QUICK}
    )
    assert predict(varied(), options).points[0].throughput == pytest.approx(16 / 5, rel=0.05)


def test_links_over_which_no_step_ends_are_refused() -> None:
    """A positive rate may be so small that a transfer's end is beyond all numbers."""
    base = varied()
    slow = base.replace(link=base.link.model_copy(update={"bytes_per_s": 1e-320}))
    with pytest.raises(InvalidOptions, match=r"no step ever ends over links of .* bytes/s"):
        predict(slow, PredictionOptions(workers=(1,), **QUICK))


@pytest.mark.parametrize(
    "misuse",
    [
        lambda: untyped.PredictionOptions("x"),
        lambda: untyped.predict("x"),
        lambda: untyped.Fleet(barrier="x"),
    ],
)
def test_every_misuse_ends_in_an_error_of_ours(misuse: Any) -> None:
    """So that one except clause is enough."""
    with pytest.raises(PaceError):
        misuse()
