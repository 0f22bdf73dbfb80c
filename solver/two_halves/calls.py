"""The calls of one half (all reduce-scatters, or all all-gathers): their gradients, times and sizes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.cost_curve import CostCurve


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """The calls of one half of the exchange.

    Attributes
    ----------
    members
        The gradients that each call carries.
    times : array of shape (num_calls,)
        Seconds. Of a reduce-scatter: the latest ready time of its members. Of an all-gather: their longest
        tail.
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
        """Build from the time (seconds) and size (bytes) of each gradient."""
        groups = tuple(tuple(int(number) for number in group) for group in members)
        return cls(
            members=groups,
            times=np.array([times[list(group)].max() for group in groups], dtype=np.float64),
            sizes=np.array([sizes[list(group)].sum() for group in groups], dtype=np.int64),
        )

    def durations(self, cost: CostCurve) -> FloatArray:
        """Return the duration of each call in seconds."""
        return cost(self.sizes)


def dependencies(scattered: Half, gathered: Half) -> IntArray:
    """Return the different pairs (reduce-scatter, all-gather) that share a gradient; shape (num_pairs, 2)."""
    call_of = {gradient: number for number, group in enumerate(scattered.members) for gradient in group}
    pairs = {
        (call_of[gradient], number)
        for number, group in enumerate(gathered.members)
        for gradient in group
        if gradient in call_of
    }
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
