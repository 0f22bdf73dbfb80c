"""The calls of one half: which run of gradients each carries, and when it may go or must be done."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.cost import CostCurve


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """The calls of one half of all exchanges.

    Attributes
    ----------
    members
        For every call, the gradients that it carries.
    times : array of shape (num_calls,)
        Reduce-scatters: ready time, the latest of the members'. All-gathers: tail, the longest of theirs.
    sizes : integer array of shape (num_calls,)
        Bytes.
    """

    members: tuple[tuple[int, ...], ...]
    times: FloatArray
    sizes: IntArray

    def __len__(self) -> int:
        return len(self.members)

    @classmethod
    def of(cls, members: Sequence[Sequence[int]], times: FloatArray, sizes: IntArray) -> "Half":
        """Build from each gradient's time and bytes."""
        groups = tuple(tuple(int(number) for number in group) for group in members)
        return cls(
            members=groups,
            times=np.array([times[list(group)].max() for group in groups], dtype=np.float64),
            sizes=np.array([sizes[list(group)].sum() for group in groups], dtype=np.int64),
        )

    def durations(self, cost: CostCurve) -> FloatArray:
        """Return what each call takes, in seconds."""
        return cost(self.sizes)


def dependencies(scattered: Half, gathered: Half) -> IntArray:
    """Return the pairs (reduce-scatter, all-gather) that share a gradient, each once; shape (num_pairs, 2).

    The gather needs what the reduce-scatter sums.
    """
    call_of = {gradient: number for number, group in enumerate(scattered.members) for gradient in group}
    pairs = {
        (call_of[gradient], number)
        for number, group in enumerate(gathered.members)
        for gradient in group
        if gradient in call_of
    }
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
