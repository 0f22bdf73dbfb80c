"""How shards are laid out, so that reduce-scatters and all-gathers can be grouped differently.

Gradients that share both their reduce-scatter and their gather are one shard. They are concatenated, padded
to a multiple of the number of ranks W, and seen as a matrix of W rows. Rank w owns row w: it holds that row's
optimizer state and updates that row's parameters. The buffer of a call is the matrices of its shards side by
side, so it has W rows too. A reduce-scatter leaves row w on rank w, a gather collects the rows again, and
both can carry any set of columns. A run of one chain and a run of the other overlap in at most one stretch.
So there are at most as many shards as calls, each with less than W padded elements.
"""

from collections.abc import Sequence

import numpy as np

from pace.solver.arrays import IntArray


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
