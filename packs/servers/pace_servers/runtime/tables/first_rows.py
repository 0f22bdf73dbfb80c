"""First values of a server's rows: those drawn for a rank's lookup are kept for its update, which follows."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from pace.solver.arrays import IntArray
from pace_servers.runtime.tables.initial_rows import RowArray

# A rank may ask for the rows of its next step before it has pushed this one's update.
_LOOKUPS = 2


class _Drawn(NamedTuple):
    keys: IntArray
    rows: RowArray


class FirstRows:
    """Draws first values, half as often as they are needed.

    Parameters
    ----------
    draw
        Returns the first values of rows with these keys.
    most_bytes
        Memory that kept rows may take.
    """

    def __init__(self, draw: Callable[[IntArray], RowArray], *, most_bytes: int) -> None:
        self._draw = draw
        self._most_bytes = most_bytes
        self._kept: dict[int, deque[_Drawn]] = {}
        self._kept_bytes = 0

    def looked_up(self, keys: IntArray, rank: int) -> RowArray:
        """Return the rows of keys that a rank looks up, and keep them for its update."""
        rows = self._draw(keys)
        kept = self._kept.setdefault(rank, deque())
        if len(kept) == _LOOKUPS:
            self._next(kept)
        if self._kept_bytes + rows.nbytes <= self._most_bytes and is_ascending(keys):
            kept.append(_Drawn(keys, rows))
            self._kept_bytes += rows.nbytes
        return rows

    def updated(self, keys: IntArray, ranks: Iterable[int]) -> RowArray:
        """Return the rows of keys that these ranks update, and keep them no longer."""
        found: RowArray | None = None
        missing = np.arange(len(keys))
        for rank in ranks:
            kept = self._kept.get(rank, deque())
            while kept and len(missing):
                drawn = self._next(kept)
                wanted = keys[missing]
                places = np.minimum(np.searchsorted(drawn.keys, wanted), len(drawn.keys) - 1)
                there = drawn.keys[places] == wanted
                if found is None:
                    if there.all():
                        return drawn.rows.take(places, axis=0)
                    found = np.empty((len(keys), drawn.rows.shape[1]), dtype=np.float32)
                found[missing[there]] = drawn.rows[places[there]]
                missing = missing[~there]
                if 2 * np.count_nonzero(there) >= len(drawn.keys):
                    break  # others were drawn for no update, or for the next one
        if found is None:
            return self._draw(keys)
        if len(missing):
            found[missing] = self._draw(keys[missing])
        return found

    def _next(self, kept: deque[_Drawn]) -> _Drawn:
        drawn = kept.popleft()
        self._kept_bytes -= drawn.rows.nbytes
        return drawn


def is_ascending(keys: IntArray) -> bool:
    """Return whether keys are sorted and distinct."""
    return bool((keys[1:] > keys[:-1]).all())
