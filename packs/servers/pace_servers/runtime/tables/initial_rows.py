"""First values of a table's rows, computed from their keys: a row that nobody has updated is not stored.

Those drawn for a rank's lookup are kept for its update, which follows.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pace.solver.arrays import IntArray

RowArray = npt.NDArray[np.float32]
Initialization = Literal["normal", "uniform", "zeros"]

_BITS = 24
_STEP = np.uint64(0x9E3779B97F4A7C15)

# Numbers are drawn in blocks: the allocator gives large temporary arrays back to the kernel each time.
_BLOCK = 8192


def initial_rows(keys: IntArray, width: int, *, kind: Initialization, scale: float, seed: int) -> RowArray:
    """Return float32 rows of shape (num_keys, width), the same for equal arguments.

    Parameters
    ----------
    keys
        Of the whole table, whatever server has them.
    scale
        Standard deviation of "normal", and largest absolute value of "uniform".
    """
    if kind == "zeros":
        return np.zeros((len(keys), width), dtype=np.float32)
    drawn: RowArray = np.empty((len(keys), width), dtype=np.float32)
    begins = keys.astype(np.uint64)  # arithmetic modulo 2^64
    begins *= np.uint64(width)
    begins += _mixed(np.array([seed], dtype=np.uint64) + _STEP) + _STEP
    columns = np.arange(width, dtype=np.uint64)
    num_rows = max(_BLOCK // width, 1)
    for begin in range(0, len(keys), num_rows):
        mixed = _mixed(begins[begin : begin + num_rows, None] + columns)
        _draw(mixed, drawn[begin : begin + num_rows], kind, np.float32(scale))
    return drawn


def _draw(mixed: npt.NDArray[np.uint64], rows: RowArray, kind: Initialization, scale: np.float32) -> None:
    """Fill `rows` from 64 random bits for each number."""
    least = np.float32(2.0**-_BITS)
    first = (mixed >> np.uint64(64 - _BITS)).astype(np.float32)
    first *= least
    if kind == "uniform":
        first *= np.float32(2)
        first -= np.float32(1)
    else:
        mixed &= np.uint64((1 << _BITS) - 1)
        second = mixed.astype(np.float32)
        second *= np.float32(2 * math.pi) * least
        # Box and Muller 1958; 1 - first is never 0.
        np.subtract(np.float32(1), first, out=first)
        np.log(first, out=first)
        first *= np.float32(-2)
        np.sqrt(first, out=first)
        np.cos(second, out=second)
        first *= second
    np.multiply(first, scale, out=rows)


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Change each number to SplitMix64's output for it (Steele, Lea and Flood 2014), and return them."""
    shifted = numbers >> np.uint64(30)
    numbers ^= shifted
    numbers *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(numbers, np.uint64(27), out=shifted)
    numbers ^= shifted
    numbers *= np.uint64(0x94D049BB133111EB)
    np.right_shift(numbers, np.uint64(31), out=shifted)
    numbers ^= shifted
    return numbers


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
