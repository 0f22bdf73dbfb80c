"""How much several batches have together, from batches that were recorded one after another."""

from collections.abc import Sequence

import numpy as np

from pace.documents.push_pull import MOST_BATCHES
from pace.solver.arrays import FloatArray, IntArray


def mean_unions(batches: Sequence[IntArray], weights: Sequence[FloatArray] | None = None) -> FloatArray:
    """Return the mean weight of what one batch contains, what two batches contain together, and so on.

    The mean is over all choices of so many of the batches. If these are drawn independently, it is unbiased
    for as many other batches, such as those of several workers (rarefaction: Hurlbert, Ecology 52, 1971).

    Parameters
    ----------
    batches
        For each batch, distinct numbers.
    weights
        The weights of these numbers; a number has the same weight in all batches (default: 1).

    Returns
    -------
    array of shape (min(num_batches, MOST_BATCHES),)
    """
    count = len(batches)
    _, first, times = np.unique(np.concatenate(batches), return_index=True, return_counts=True)
    weight = np.ones(len(first)) if weights is None else np.concatenate(weights)[first]
    of_times = np.bincount(times, weights=weight, minlength=count + 1)
    # The chance that a number in so many batches is in none of n: C(count - times, n) / C(count, n).
    absent = np.ones(count + 1)
    found = []
    for chosen in range(min(count, MOST_BATCHES)):
        absent *= np.maximum(count - np.arange(count + 1) - chosen, 0) / (count - chosen)
        found.append(float(of_times @ (1 - absent)))
    return np.maximum.accumulate(found)
