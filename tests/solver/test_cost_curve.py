"""Cost curves: zero at zero, monotone, and really above the lines that bounds are priced with."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.solver.cost_curve import CostCurve, Line
from tests.strategies import allreduces, properties

CURVES = st.builds(lambda document, workers: document.cost(workers), allreduces(), st.sampled_from([2, 4, 8]))


def test_a_curve_through_knots() -> None:
    """Constant below 2 bytes, 0.5 s/byte up to 4, 0.25 s/byte beyond; nothing for nothing."""
    curve = CostCurve(sizes_bytes=(2.0, 4.0), durations_s=(1.0, 2.0), slope_beyond=0.25)
    assert curve([0, 1, 2, 3, 4, 8]).tolist() == [0, 1, 1, 1.5, 2, 3]
    assert curve.line is None


def test_an_affine_curve_is_its_own_line() -> None:
    """Latency for the first byte on, and no latency for no bytes."""
    curve = CostCurve.affine(3, 2)
    assert curve([0, 1, 10]).tolist() == [0, 5, 23]
    assert curve.line == Line(latency_s=3, seconds_per_byte=2)
    assert curve.minorants(100) == (curve.line,)


def test_minorants_of_a_concave_curve() -> None:
    """2 s up to 1 byte, 3 s at 4, 3.5 s at 8: the hull runs from (0, 2) over (1, 2) to (8, 3.5).

    Its edges are the constant 2 and a line of 1.5 / 7 s/byte; through zero 3.5 / 8 s/byte is steepest.
    """
    curve = CostCurve(sizes_bytes=(1.0, 4.0), durations_s=(2.0, 3.0), slope_beyond=0.125)
    lines = curve.minorants(8)
    assert lines == (
        Line(latency_s=0.0, seconds_per_byte=3.5 / 8),
        Line(latency_s=2.0, seconds_per_byte=0.0),
        Line(latency_s=2.0 - 1.5 / 7, seconds_per_byte=1.5 / 7),
    )


def test_an_edge_that_meets_the_axis_below_zero_is_no_bound() -> None:
    """A curve that stays at 1 s up to 4 bytes and then rises steeply: calls of 4 bytes undercut the edge."""
    curve = CostCurve(sizes_bytes=(4.0, 5.0), durations_s=(1.0, 3.0), slope_beyond=2.0)
    for line in curve.minorants(8):
        assert line.latency_s >= 0
        assert 2 * float(curve(4)) >= line.latency_s + 8 * line.seconds_per_byte


@given(CURVES, st.lists(st.integers(0, 200), min_size=1, max_size=20))
@properties(60)
def test_costs_never_fall(curve: CostCurve, sizes: list[int]) -> None:
    """More bytes never take less time, and none take none."""
    durations = curve(np.sort(sizes))
    assert np.all(np.diff(durations) >= -1e-12)
    assert float(curve(0)) == 0
    assert np.all(durations >= 0)


@given(CURVES, st.integers(1, 200), st.data())
@properties(100)
def test_minorants_lie_below_single_calls_and_below_sums_of_calls(
    curve: CostCurve, largest: int, data: st.DataObject
) -> None:
    """However the bytes are split into calls, together they cost no less than any line says."""
    cuts = sorted(data.draw(st.lists(st.integers(0, largest), max_size=6)))
    parts = np.diff([0, *cuts, largest])
    for line in curve.minorants(float(largest)):
        assert line.latency_s >= 0
        assert line.seconds_per_byte >= 0
        total = float(curve(parts).sum())
        assert line.latency_s + largest * line.seconds_per_byte <= total * (1 + 1e-12) + 1e-12
        for size in range(1, largest + 1):
            least = line.latency_s + size * line.seconds_per_byte
            assert least <= float(curve(size)) * (1 + 1e-12) + 1e-12


@given(st.builds(lambda document: document.cost(1), allreduces()), st.integers(0, 10**9))
@properties(30)
def test_one_worker_pays_nothing(curve: CostCurve, size: int) -> None:
    """There is nobody to reduce with."""
    assert float(curve(size)) == 0


@given(CURVES, st.integers(0, 200))
@properties(60)
def test_the_compiled_price_is_the_curve(curve: CostCurve, size: int) -> None:
    """The loops price what the documents say."""
    from pace.solver.kernels.partition import price

    assert price(float(size), *curve.knots()) == pytest.approx(float(curve(size)), rel=1e-12, abs=1e-15)


@given(CURVES, st.sampled_from([0.0, 0.1, 0.125, 0.5, 1.0, 3.0, 40.0]))
@properties(60)
def test_the_largest_size_within_a_duration(curve: CostCurve, duration: float) -> None:
    """What is said to fit into a duration fits, and a little more does not."""
    from pace.solver.kernels.partition import most_within

    size = most_within(duration, *curve.knots())
    if np.isinf(size):
        assert float(curve(1e12)) <= duration
        return
    assert float(curve(size * (1 - 1e-9))) <= duration * (1 + 1e-9)
    assert size > 0 or float(curve(1e-9)) > duration
    if size > 0:
        assert float(curve(size * (1 + 1e-6) + 1e-6)) > duration * (1 - 1e-9)


@properties(200)
@given(st.lists(st.integers(0, 9), max_size=12), st.integers(-1, 10))
def test_places_of_knots_are_those_of_numpy(values: list[int], value: int) -> None:
    """The first that is at least, or above, a value; also where several are equal, and where none is."""
    from pace.solver.kernels.partition import first_above, first_at_least

    rising = np.array(sorted(values), dtype=np.float64)
    assert first_at_least(rising, float(value)) == np.searchsorted(rising, value)
    assert first_above(rising, float(value)) == np.searchsorted(rising, value, side="right")


def test_kernels_get_the_same_types_from_whole_numbers() -> None:
    """Of another type, they would be compiled while the first request waits."""
    (sizes, seconds, _) = CostCurve(sizes_bytes=(1, 2), durations_s=(1, 2), slope_beyond=0.0).knots()
    assert sizes.dtype == seconds.dtype == np.float64
