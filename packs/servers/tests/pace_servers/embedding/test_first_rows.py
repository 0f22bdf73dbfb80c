"""First values that a lookup has drawn, used again by the update; and sums of updates by hand."""

from typing import Any

import numpy as np
import pytest

from pace.solver.arrays import IntArray
from pace_servers.runtime.tables.initial_rows import FirstRows, RowArray, initial_rows, is_ascending
from pace_servers.runtime.tables.served_tables import added

WIDTH = 3


class _Drawer:
    """Draws rows, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, keys: IntArray) -> RowArray:
        self.count += len(keys)
        return initial_rows(keys, WIDTH, kind="normal", scale=1.0, seed=0)


def _keys(*keys: int) -> IntArray:
    return np.array(keys, dtype=np.int64)


def test_an_update_draws_only_what_its_ranks_lookups_have_not() -> None:
    """Two ranks, a lookup ahead of an update, one that no update follows, and keys that nobody asked for."""
    drawer = _Drawer()
    first = FirstRows(drawer, most_bytes=1 << 20)
    expected = _Drawer()

    def drawn_for_update(keys: IntArray, *ranks: int) -> int:
        before = drawer.count
        assert np.array_equal(first.updated(keys, ranks), expected(keys))
        return drawer.count - before

    first.looked_up(_keys(1, 4, 9), 0)
    first.looked_up(_keys(4, 5), 1)
    first.looked_up(_keys(2, 9), 0)  # ahead
    assert drawn_for_update(_keys(1, 4, 5, 9), 0, 1) == 0
    assert drawn_for_update(_keys(2, 3, 9), 0) == 1
    assert drawn_for_update(_keys(2, 9), 0) == 2  # kept no longer
    for keys in (_keys(7), _keys(8), _keys(6, 8), _keys(3)):  # evaluation, and a step after it
        first.looked_up(keys, 1)
    assert drawn_for_update(_keys(3), 1) == 0
    first.looked_up(_keys(5, 4), 0)  # no worker does this
    assert drawn_for_update(_keys(4, 5), 0) == 2


def test_no_more_rows_are_kept_than_there_is_memory_for() -> None:
    """Room for two rows: a lookup of three keeps none, and one of two keeps both."""
    drawer = _Drawer()
    first = FirstRows(drawer, most_bytes=2 * 4 * WIDTH)
    for keys, drawn in ((_keys(1, 2, 3), 6), (_keys(4, 5), 2), (_keys(6, 7), 2)):
        before = drawer.count
        first.looked_up(keys, 0)
        first.updated(keys, [0])
        assert drawer.count - before == drawn


@pytest.mark.parametrize(("keys", "ascending"), [((), True), ((3,), True), ((3, 3), False), ((4, 3), False)])
def test_ascending_keys(keys: tuple[int, ...], ascending: bool) -> None:
    """Sorted and distinct."""
    assert is_ascending(_keys(*keys)) == ascending


def _update(*rows: tuple[int, float]) -> Any:
    return _keys(*(key for key, _ in rows)), np.array([[number] for _, number in rows], dtype=np.float32)


def test_updates_are_added_in_the_order_of_ranks_and_passes() -> None:
    """2^24 + 1 - 2^24 is 0 in this order and 1 in another; a key without another one keeps its sign of 0."""
    big = float(1 << 24)
    keys, sums = added([_update((2, big), (5, -0.0), (2, 1.0)), _update((1, 3.0), (2, -big))])
    assert keys.tolist() == [1, 2, 5]
    assert sums[:, 0].tolist() == [3.0, 0.0, 0.0]
    assert np.signbit(sums[2, 0])
    alone = _update((1, 2.0), (7, 1.0))
    assert added([alone]) is alone
