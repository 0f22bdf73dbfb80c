"""First values of a table's rows, computed from their keys: a row that nobody has updated is not stored."""

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from pace.solver.arrays import IntArray

RowArray = npt.NDArray[np.float32]
Initialization = Literal["normal", "uniform", "zeros"]

_BITS = 24


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
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64
        place = keys.astype(np.uint64)[:, None] * np.uint64(width) + np.arange(width, dtype=np.uint64)
        mixed = _mixed(np.asarray(place + _mixed(np.array([seed], dtype=np.uint64)), dtype=np.uint64))
    least = np.float32(2.0**-_BITS)
    first = (mixed >> np.uint64(64 - _BITS)).astype(np.float32) * least
    if kind == "uniform":
        return (first * 2 - 1) * np.float32(scale)
    second = (mixed & np.uint64((1 << _BITS) - 1)).astype(np.float32) * least
    # Box and Muller 1958; 1 - first is never 0.
    drawn: RowArray = np.sqrt(-2 * np.log(1 - first)) * np.cos(np.float32(2 * math.pi) * second)
    return drawn * np.float32(scale)


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return SplitMix64 of each number (Steele, Lea and Flood 2014)."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
