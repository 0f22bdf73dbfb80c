"""Runs of elements of a flat tensor: which of them a sparse gradient has, when all others are zero."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Runs of elements, ascending; none overlaps another.

    Attributes
    ----------
    starts, lengths
        In elements. No length is 0.
    """

    starts: Places
    lengths: Places

    @classmethod
    def none(cls) -> Self:
        """Return no runs."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))

    @classmethod
    def whole(cls, start: int, length: int) -> Self:
        """Return one run, or none where its length is 0."""
        return cls(np.full(min(length, 1), start, np.int64), np.full(min(length, 1), length, np.int64))

    @classmethod
    def of_rows(cls, rows: Places, width: int) -> Self:
        """Return rows of a table, given in ascending order, of so many elements each."""
        if not width:
            return cls.none()
        return cls(rows * width, np.full(len(rows), width, dtype=np.int64))

    @classmethod
    def joined(cls, parts: "Sequence[Runs]") -> Self:
        """Return runs that follow one another."""
        return cls(
            np.concatenate([part.starts for part in parts]), np.concatenate([part.lengths for part in parts])
        )

    @property
    def ends(self) -> Places:
        """Where each run ends."""
        return self.starts + self.lengths

    @property
    def num_elements(self) -> int:
        """How many elements all runs have."""
        return int(self.lengths.sum())

    @property
    def places(self) -> Places:
        """The place of every element."""
        begins = np.repeat(self.starts - np.cumsum(self.lengths) + self.lengths, self.lengths)
        return begins + np.arange(self.num_elements)

    def cut(self, first: int, last: int) -> "Runs":
        """Return what lies from place `first` on, before `last`, counted from `first`."""
        if first >= last:
            return Runs.none()
        begin = int(np.searchsorted(self.ends, first, side="right"))
        end = int(np.searchsorted(self.starts, last, side="left"))
        starts = np.maximum(self.starts[begin:end], first)
        lengths = np.minimum(self.starts[begin:end] + self.lengths[begin:end], last) - starts
        return Runs(starts - first, lengths)

    def shifted(self, by: int) -> "Runs":
        """Return the runs so many places later."""
        return Runs(self.starts + by, self.lengths)

    def without(self, first: int, last: int) -> "Runs":
        """Return what lies before place `first`, and from `last` on."""
        total = int(self.ends[-1]) if len(self.starts) else 0
        return Runs.joined([self.cut(0, first), self.cut(last, max(total, last)).shifted(last)])

    def union(self, other: "Runs") -> "Runs":
        """Return the elements of both. Runs that only touch stay apart: rows of a table, for example."""
        starts = np.concatenate([self.starts, other.starts])
        order = np.argsort(starts, kind="stable")
        starts = starts[order]
        ends = np.maximum.accumulate(np.concatenate([self.ends, other.ends])[order])
        if not len(starts):
            return self
        begins = np.flatnonzero(np.concatenate([[True], starts[1:] >= ends[:-1]]))
        return Runs(starts[begins], ends[np.append(begins[1:], len(ends)) - 1] - starts[begins])
