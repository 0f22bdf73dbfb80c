"""Lists of numbers for each node, such as what it reads, as two arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjacency:
    """A list of numbers for each node, all in one array: node i has ``flat[starts[i]:starts[i + 1]]``."""

    starts: IntArray
    flat: IntArray

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> "Adjacency":
        """Convert one list for each node."""
        starts = np.zeros(len(lists) + 1, dtype=np.int64)
        np.cumsum([len(each) for each in lists], out=starts[1:])
        flat = np.fromiter((item for each in lists for item in each), dtype=np.int64, count=int(starts[-1]))
        return cls(starts=starts, flat=flat)

    def __getitem__(self, node: int) -> IntArray:
        return self.flat[self.starts[node] : self.starts[node + 1]]

    def reversed(self, num_targets: int) -> "Adjacency":
        """Return for each target the nodes that list it, in their order."""
        sources = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        order = np.argsort(self.flat, kind="stable")
        starts = np.zeros(num_targets + 1, dtype=np.int64)
        np.cumsum(np.bincount(self.flat, minlength=num_targets), out=starts[1:])
        return Adjacency(starts=starts, flat=sources[order])
