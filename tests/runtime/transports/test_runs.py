"""Runs of elements: cutting them, leaving some out, and adding those of others."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pace.runtime.transports.runs import Runs

_SIZE = 40


@st.composite
def _runs(draw: st.DrawFn) -> Runs:
    places = sorted(draw(st.sets(st.integers(0, _SIZE - 1))))
    starts: list[int] = []
    lengths: list[int] = []
    for place in places:
        if starts and starts[-1] + lengths[-1] == place and draw(st.booleans()):
            lengths[-1] += 1
        else:
            starts.append(place)
            lengths.append(1)
    return Runs(np.array(starts, dtype=np.int64), np.array(lengths, dtype=np.int64))


@given(_runs(), st.integers(0, _SIZE), st.integers(0, _SIZE))
def test_a_cut_and_what_is_left_of_it_are_all_places(runs: Runs, one: int, other: int) -> None:
    """Every place is either in the cut or in the rest, and no run is empty."""
    first, last = sorted((one, other))
    cut, rest = runs.cut(first, last), runs.without(first, last)
    assert list(cut.places + first) == [place for place in runs.places if first <= place < last]
    assert list(rest.places) == [place for place in runs.places if not first <= place < last]
    assert all(length > 0 for each in (cut, rest) for length in each.lengths)


@given(_runs(), _runs())
def test_a_union_has_the_places_of_both_once(one: Runs, other: Runs) -> None:
    """Runs of the union ascend and do not overlap."""
    union = one.union(other)
    assert list(union.places) == sorted({*one.places, *other.places})
    assert np.all(union.starts[1:] >= union.ends[:-1])


def test_rows_that_touch_stay_apart() -> None:
    """Rows of a table keep their common length, which is then sent once."""
    rows = Runs.of_rows(np.array([1, 2, 5]), 4)
    union = rows.union(Runs.of_rows(np.array([2, 3]), 4))
    assert union.starts.tolist() == [4, 8, 12, 20]
    assert union.lengths.tolist() == [4, 4, 4, 4]
    assert Runs.of_rows(np.array([3]), 0).num_elements == 0
