"""Searches over the unit cube: their places, their budget, and what noise does to them."""

import numpy as np
import pytest

from pace.solver.arrays import FloatArray
from pace.solver.knob_search import SEARCHES, Measured, Search, _grid_sizes, _noise, places, run

AT = np.array([0.3, 0.7])


def tried(search: Search, num_trials: int, *, seed: int = 0, first: FloatArray | None = None) -> FloatArray:
    """Return the places that a search tries for a bowl around `AT`."""
    found: list[FloatArray] = []

    def measure(place: FloatArray) -> Measured:
        found.append(place)
        return Measured(1.0 + float(np.sum((place - AT) ** 2)))

    run(places(search, 2, num_trials, seed=seed, first=first), measure)
    return np.array(found)


@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_keeps_its_budget_and_repeats_itself(search: Search) -> None:
    """Same seed and costs, same places; two decimals over the edge are the nudges of a slope."""
    if search == "bayes":
        pytest.importorskip("bayes_opt")
    found = tried(search, 12)
    assert 1 <= len(found) <= 12
    assert found.min() >= -0.05
    assert found.max() <= 1.05
    assert np.array_equal(found, tried(search, 12))


@pytest.mark.parametrize("search", ["bayes", "momentum"])
def test_a_start_is_tried_first(search: Search) -> None:
    """Theory gives a place to begin at."""
    pytest.importorskip("bayes_opt")
    assert tried(search, 4, first=np.array([0.5, 0.25]))[0].tolist() == [0.5, 0.25]


def test_bayesian_optimization_finds_the_bottom() -> None:
    """Of 20 places one is near it; the last ones are not random any more."""
    pytest.importorskip("bayes_opt")
    assert np.min(np.linalg.norm(tried("bayes", 20) - AT, axis=1)) < 0.15


@pytest.mark.parametrize(
    ("num_knobs", "num_trials", "sizes"),
    [(2, 400, [20, 20]), (2, 15, [4, 3]), (4, 15, [2, 2, 2, 1]), (1, 7, [7]), (3, 2, [2, 1, 1])],
)
def test_a_grid_is_the_largest_that_fits(num_knobs: int, num_trials: int, sizes: list[int]) -> None:
    """Axes as equal as they can be; the first ones have a step more."""
    assert _grid_sizes(num_knobs, num_trials) == sizes


def test_noise_is_a_share_of_what_varies() -> None:
    """Repetitions that vary as much as all results are noise alone; none at all leave the least."""
    assert _noise([1.0, 3.0], [1.0, 1.0]) == 1.0
    assert _noise([1.0, 3.0], [0.1, 0.1]) == pytest.approx(0.01)
    assert _noise([2.0, 2.0], [1.0, 1.0]) == _noise([1.0, 3.0], [0.0, 0.0]) == 1e-6


@pytest.mark.parametrize("start", [0.0, 0.5, 1.0])
def test_a_place_that_comes_twice_is_taken_without_a_word(
    start: float, capfd: pytest.CaptureFixture[str]
) -> None:
    """On a flat objective at an edge, places repeat; stdout belongs to the caller's document."""
    pytest.importorskip("bayes_opt")
    tried: list[tuple[float, ...]] = []

    def flat(place: FloatArray) -> Measured:
        tried.append(tuple(place.tolist()))
        return Measured(1.0)

    run(places("bayes", 2, 12, seed=0, first=np.full(2, start)), flat)
    assert len(tried) == 12
    assert start == 0.5 or len(set(tried)) < len(tried)
    assert capfd.readouterr().out == ""
