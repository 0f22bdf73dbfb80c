"""How shards are laid out, so that the two halves can be put together differently.

Gradients that share both their reduce-scatter and their gather are one shard: they lie one behind the other,
padded at the end to a multiple of the W ranks, and are looked at as a matrix of W rows. Rank w owns row w:
it holds that row's optimizer state and updates that row's parameters. A call's buffer is the matrices of its
shards side by side, so it has W rows too: a reduce-scatter leaves row w on rank w, a gather collects the rows
again, and both may carry any set of columns. A run of one chain and a run of the other have at most one
stretch in common, so runs give at most as many shards as calls, each with less than W padded elements.
"""

from collections.abc import Sequence

import numpy as np

from pace.solver.arrays import IntArray


def common_shards(
    scattered: Sequence[Sequence[int]], gathered: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """Return the gradients of every shard, by reduce-scatter, then by gather, each in the first's order."""
    gather_of = {gradient: number for number, group in enumerate(gathered) for gradient in group}
    shards: dict[tuple[int, int], list[int]] = {}
    for number, group in enumerate(scattered):
        for gradient in group:
            shards.setdefault((number, gather_of[gradient]), []).append(gradient)
    return tuple(tuple(shards[key]) for key in sorted(shards))


def columns_of(shards: Sequence[Sequence[int]], elements: IntArray, workers: int) -> IntArray:
    """Return how many columns each shard has: its elements over the ranks, rounded up."""
    total = np.array([elements[list(shard)].sum() for shard in shards], dtype=np.int64)
    return -(-total // workers)
