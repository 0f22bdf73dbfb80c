"""The calls of one half (all reduce-scatters, or all all-gathers), and how their shards are laid out.

Gradients that share both their reduce-scatter and their gather are one shard. They are concatenated, padded
to a multiple of the number of ranks W, and seen as a matrix of W rows. Rank w owns row w: it holds that row's
optimizer state and updates that row's parameters. The buffer of a call is the matrices of its shards side by
side, so it has W rows too. A reduce-scatter leaves row w on rank w, a gather collects the rows again, and
both can carry any set of columns. A run of one chain and a run of the other overlap in at most one stretch.
So there are at most as many shards as calls, each with less than W padded elements.
"""

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


def common_shards(
    scattered: Sequence[Sequence[int]], gathered: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """Return the gradients of each shard, ordered by reduce-scatter, then by gather.

    Within a shard, gradients are in the order of `scattered`.
    """
    gather_of = {gradient: number for number, group in enumerate(gathered) for gradient in group}
    shards: dict[tuple[int, int], list[int]] = {}
    for number, group in enumerate(scattered):
        for gradient in group:
            shards.setdefault((number, gather_of[gradient]), []).append(gradient)
    return tuple(tuple(shards[key]) for key in sorted(shards))


def columns_of(shards: Sequence[Sequence[int]], elements: IntArray, workers: int) -> IntArray:
    """Return the number of columns of each shard: its elements divided by `workers`, rounded up."""
    total = np.array([elements[list(shard)].sum() for shard in shards], dtype=np.int64)
    return -(-total // workers)
