"""Updates of few numbers of a model, rows of embeddings say: runs of numbers, on the wire and in sums.

On the wire: how many numbers the model has and how many runs there are (two u64), where each run starts
(u64), how long each is (u32), and the numbers of all runs (float32); everything little-endian.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pace.errors import InvalidUse
from pace.runtime.transports.runs import Runs
from pace_fabric.runtime.commit_log import Vector

_HEAD = np.dtype("<u8")
_START, _LENGTH, _NUMBER = np.dtype("<u8"), np.dtype("<u4"), np.dtype("<f4")


@dataclass(frozen=True, slots=True, eq=False)
class SparseUpdate:
    """Numbers at some places of a model; all others are 0.

    Attributes
    ----------
    numbers
        How many numbers the whole model has.
    starts, lengths
        Runs of places, ascending, which do not overlap.
    values
        The numbers of all runs, one run after the other, float32.
    """

    numbers: int
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    values: Vector

    def __post_init__(self) -> None:
        ends = self.starts + self.lengths
        if (
            len(self.starts) != len(self.lengths)
            or int(self.lengths.sum()) != len(self.values)
            or (len(ends) and (int(self.starts[0]) < 0 or int(ends[-1]) > self.numbers))
            or np.any(self.lengths <= 0)
            or np.any(self.starts[1:] < ends[:-1])
        ):
            raise InvalidUse(
                f"{len(self.starts):,} runs with {len(self.values):,} numbers of a model of {self.numbers:,}:"
                " runs must ascend, not overlap, and end within the model"
            )

    @classmethod
    def of_rows(
        cls, rows: NDArray[np.integer], values: NDArray[np.float32], *, numbers: int, first: int = 0
    ) -> Self:
        """Return an update of rows of a table that lies in the model.

        Parameters
        ----------
        rows
            Numbers of rows; those of a row that comes twice are added.
        values
            One line for each row.
        numbers
            Number of numbers in the whole model.
        first
            The place of the table's first number.
        """
        if values.ndim != 2 or rows.shape != values.shape[:1] or not values.size:
            raise InvalidUse(f"rows {rows.shape} and values {values.shape}: one line for each row is needed")
        different, place = np.unique(rows.astype(np.int64), return_inverse=True)
        total = np.zeros((len(different), values.shape[1]), dtype=np.float32)
        np.add.at(total, place.reshape(-1), values.astype(np.float32))
        width = np.full(len(different), values.shape[1], dtype=np.int64)
        return cls(numbers, first + different * values.shape[1], width, total.reshape(-1))

    @classmethod
    def of_places(cls, places: NDArray[np.int64], values: Vector, numbers: int) -> Self:
        """Return an update from the place of every number, ascending."""
        breaks = np.flatnonzero(np.diff(places, prepend=-2) != 1)
        lengths = np.diff(breaks, append=len(places))
        return cls(numbers, places[breaks], lengths, values)

    @classmethod
    def of_vector(cls, vector: Vector) -> Self:
        """Return the numbers of a vector that are not 0."""
        places = np.flatnonzero(vector)
        return cls.of_places(places, vector[places], len(vector))

    @property
    def places(self) -> NDArray[np.int64]:
        """The place of every number in the model."""
        return Runs(self.starts, self.lengths).places

    def dense(self) -> Vector:
        """Return the whole vector."""
        vector = np.zeros(self.numbers, dtype=np.float32)
        vector[self.places] = self.values
        return vector

    def cut(self, first: int, last: int) -> "SparseUpdate":
        """Return what lies from place `first` on, before `last`, of a model that has only those."""
        starts = np.clip(self.starts, first, last)
        lengths = np.clip(self.starts + self.lengths, first, last) - starts
        places, kept = self.places, lengths > 0
        inside = (places >= first) & (places < last)
        return SparseUpdate(last - first, starts[kept] - first, lengths[kept], self.values[inside])

    def to_bytes(self) -> bytearray:
        """Return it as it goes over the wire."""
        head = np.array([self.numbers, len(self.starts)], dtype=_HEAD)
        parts = (head, self.starts.astype(_START), self.lengths.astype(_LENGTH), self.values.astype(_NUMBER))
        return bytearray(b"".join(part.tobytes() for part in parts))

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        """Read what came over the wire.

        Raises
        ------
        InvalidUse
            When it is no such update.
        """
        if len(data) < 16:
            raise InvalidUse(f"a sparse update of {len(data)} bytes; its head alone has 16")
        numbers, runs = (int(each) for each in np.frombuffer(data, _HEAD, 2))
        values_at = 16 + 12 * runs
        if values_at > len(data) or (len(data) - values_at) % 4 or numbers >= 1 << 62:
            raise InvalidUse(f"a sparse update of {len(data):,} bytes that is to have {runs:,} runs")
        return cls(
            numbers,
            np.frombuffer(data, _START, runs, 16).astype(np.int64),
            np.frombuffer(data, _LENGTH, runs, 16 + 8 * runs).astype(np.int64),
            np.frombuffer(data, _NUMBER, offset=values_at),
        )


def add_sparse(parts: Sequence[SparseUpdate], factors: Sequence[float]) -> SparseUpdate:
    """Return the sum of factors times parts, from the first to the last, in float32."""
    if len({part.numbers for part in parts}) > 1:
        raise InvalidUse(
            f"the parts are of models of different sizes: {sorted({part.numbers for part in parts})} numbers"
        )
    each = [part.places for part in parts]
    places = np.unique(np.concatenate(each))
    total = np.zeros(len(places), dtype=np.float32)
    for part, own, factor in zip(parts, each, factors, strict=True):
        total[np.searchsorted(places, own)] += (
            part.values if factor == 1.0 else part.values * np.float32(factor)
        )
    return SparseUpdate.of_places(places, total, parts[0].numbers)


def join_sparse(first: SparseUpdate, second: SparseUpdate) -> SparseUpdate:
    """Return one vector after another."""
    return SparseUpdate(
        first.numbers + second.numbers,
        np.concatenate([first.starts, second.starts + first.numbers]),
        np.concatenate([first.lengths, second.lengths]),
        np.concatenate([first.values, second.values]),
    )
