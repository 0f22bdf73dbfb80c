"""Runs of elements of a flat tensor: the elements of a sparse gradient that may be nonzero."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Runs of elements in ascending order, without overlaps.

    Attributes
    ----------
    starts, lengths : integer arrays of shape (num_runs,)
        First element and number of elements of each run; no length is 0.
    """

    starts: Places
    lengths: Places

    @classmethod
    def none(cls) -> Self:
        """Return no runs."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))

    @classmethod
    def whole(cls, start: int, length: int) -> Self:
        """Return one run, or none if its length is 0."""
        return cls(np.full(min(length, 1), start, np.int64), np.full(min(length, 1), length, np.int64))

    @classmethod
    def of_rows(cls, rows: Places, width: int) -> Self:
        """Return the runs of rows of a table, in ascending order, with `width` elements each."""
        if not width:
            return cls.none()
        return cls(rows * width, np.full(len(rows), width, dtype=np.int64))

    @classmethod
    def joined(cls, parts: "Sequence[Runs]") -> Self:
        """Concatenate runs; each part must begin after the previous one."""
        return cls(
            np.concatenate([part.starts for part in parts]), np.concatenate([part.lengths for part in parts])
        )

    @classmethod
    def merged(cls, parts: "Sequence[Runs]") -> Self:
        """Return runs with the elements of all parts, which may overlap. Adjacent runs are not merged."""
        starts = np.concatenate([np.zeros(0, dtype=np.int64), *(part.starts for part in parts)])
        if not len(starts):
            return cls.none()
        order = np.argsort(starts, kind="stable")
        starts = starts[order]
        ends = np.maximum.accumulate(np.concatenate([part.ends for part in parts])[order])
        begins = np.flatnonzero(np.concatenate([[True], starts[1:] >= ends[:-1]]))
        return cls(starts[begins], ends[np.append(begins[1:], len(ends)) - 1] - starts[begins])

    @property
    def ends(self) -> Places:
        """The end of each run."""
        return self.starts + self.lengths

    @property
    def num_elements(self) -> int:
        """The number of elements in all runs."""
        return int(self.lengths.sum())

    @property
    def places(self) -> Places:
        """The index of every element."""
        begins = np.repeat(self.starts - np.cumsum(self.lengths) + self.lengths, self.lengths)
        return begins + np.arange(self.num_elements)

    def cut(self, first: int, last: int) -> "Runs":
        """Return the parts of runs in the range from `first` to `last`, relative to `first`."""
        if first >= last:
            return Runs.none()
        begin = int(np.searchsorted(self.ends, first, side="right"))
        end = int(np.searchsorted(self.starts, last, side="left"))
        starts = np.maximum(self.starts[begin:end], first)
        lengths = np.minimum(self.starts[begin:end] + self.lengths[begin:end], last) - starts
        return Runs(starts - first, lengths)

    def shifted(self, by: int) -> "Runs":
        """Return the runs moved by `by` elements."""
        return Runs(self.starts + by, self.lengths)

    def without(self, first: int, last: int) -> "Runs":
        """Return the parts of runs outside of the range from `first` to `last`."""
        total = int(self.ends[-1]) if len(self.starts) else 0
        return Runs.joined([self.cut(0, first), self.cut(last, max(total, last)).shifted(last)])

    def union(self, other: "Runs") -> "Runs":
        """Return runs with the elements of both. Adjacent runs are not merged."""
        return Runs.merged([self, other])
