"""Drift and its settings: what counts as drift, on numbers worked out by hand."""

import pytest

from pace.errors import InvalidOptions
from pace.runtime.control.drift import Drift, Typical
from pace.runtime.entry_point import read_replanning
from pace.runtime.options import Replanning

SETTINGS = Replanning(drift_iterations=3, drift_ratio=1.25, stale_ratio=2.0)


def _watched(*windows: tuple[float, float], predicted_s: float | None = None) -> Drift:
    """Show one rank's windows of (iteration, compute) to a new watcher."""
    drift = Drift(SETTINGS, predicted_s)
    for iteration_s, compute_s in windows:
        drift.compare([Typical(iteration_s, compute_s)])
    return drift


def test_a_window_counts_when_it_is_full_and_by_its_median() -> None:
    """One long iteration, for an evaluation say, is no drift."""
    drift = Drift(SETTINGS, None)
    for iteration_s, waited_s in ((1.0, 0.25), (9.0, 0.0)):
        drift.record(iteration_s, waited_s)
        assert drift.typical() is None
    drift.record(1.0, 0.5)
    assert drift.typical() == Typical(1.0, 0.75)
    drift.restart_window()
    assert drift.typical() is None


def test_the_slowest_rank_counts() -> None:
    """A rank whose window is not full yet keeps all from judging."""
    drift = Drift(SETTINGS, None)
    references = []
    for said in (
        [Typical(1.0, 1.0), None],
        [Typical(1.0, 0.5), Typical(2.0, 0.25)],
        [Typical(2.0, 0.5), Typical(1.0, 0.5)],
    ):
        drift.compare(said)
        references.append(drift.reference)
    assert references == [None, Typical(2.0, 0.5), Typical(2.0, 0.5)]
    assert (drift.ratio, drift.drifted) == (1.0, False)


@pytest.mark.parametrize(
    ("iteration_s", "compute_s", "ratio", "drifted"),
    [
        (4.8, 2.0, 1.2, False),
        (5.2, 2.0, 1.3, True),
        (3.0, 2.0, 0.75, True),
        (4.0, 3.5, 1.375, True),
        (4.0, 0.5, 0.625, True),
        (4.0, 2.8, 1.2, False),
    ],
)
def test_slower_and_faster_by_the_ratio_is_drift(
    iteration_s: float, compute_s: float, ratio: float, drifted: bool
) -> None:
    """Against 4 s with 2 s of compute: compute hidden by waiting counts for what it makes of an iteration."""
    drift = _watched((4.0, 2.0), (iteration_s, compute_s))
    assert drift.ratio == pytest.approx(ratio)
    assert drift.drifted is drifted
    assert drift.against == "start"


def test_drift_that_passes_is_none() -> None:
    """The latest window counts, not the worst."""
    assert not _watched((4.0, 2.0), (8.0, 6.0), (4.0, 2.0)).drifted


def test_a_schedule_of_others_is_held_to_its_prediction_once() -> None:
    """Far from what it promised, it was made for other circumstances; later windows do not excuse it."""
    assert not _watched((1.9, 1.0), predicted_s=1.0).drifted
    stale = _watched((2.5, 1.0), (2.5, 1.0), predicted_s=1.0)
    assert stale.drifted
    assert (stale.ratio, stale.against) == (2.5, "prediction")
    assert _watched((0.4, 0.2), predicted_s=1.0).drifted
    assert not _watched((2.5, 1.0)).drifted


def test_settings_come_from_the_environment_and_survive_the_way_to_other_ranks() -> None:
    """What is not set keeps its default; nonsense is refused by name."""
    settings = read_replanning(
        {"PACE_PROFILE_ITERATIONS": "7", "PACE_DRIFT_RATIO": "1.5", "PACE_DRIFT_ITERATIONS": ""}
    )
    assert settings == Replanning(profile_iterations=7, drift_ratio=1.5)
    assert Replanning.from_json(settings.to_json()) == settings
    with pytest.raises(InvalidOptions, match='PACE_REPLAN_INTERVAL_S is "soon"'):
        read_replanning({"PACE_REPLAN_INTERVAL_S": "soon"})
    with pytest.raises(InvalidOptions, match=r"drift_ratio is 0\.5; a number of at least 1 is needed"):
        Replanning(drift_ratio=0.5)
    with pytest.raises(InvalidOptions, match="interval_s is nan"):
        Replanning(interval_s=float("nan"))
