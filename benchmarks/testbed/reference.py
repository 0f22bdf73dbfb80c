"""The weights that training must give, computed in one process without any all-reduce.

The replay's gradient is ``p + s d``; averaged over ranks, ``p + s mean(d)``. Plain SGD on that in float64 is
what every contender's weights are held against.
"""

import hashlib

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.testbed.replay import directions_of, initial_weights
from pace.documents.profile import Profile

LEARNING_RATE = 0.02

# Sums of float32 in another order; of weights of size 1 after tens of updates.
TOLERANCE = 2e-5

FloatArray = npt.NDArray[np.float64]


def scale_of(iteration: int) -> float:
    """Return s, the input of an iteration; the same on all ranks, exact in float32."""
    return 0.5 + (iteration % 7) / 64


def expected_weights(profile: Profile, *, workers: int, iterations: int) -> FloatArray:
    """Return all weights after so many iterations, in the order of the profile's gradients."""
    mean = sum(_flat(directions_of(profile, rank)) for rank in range(workers)) / workers
    weights = _flat(initial_weights(profile))
    for iteration in range(iterations):
        weights = weights - LEARNING_RATE * (weights + scale_of(iteration) * mean)
    return weights


def _flat(tensors: dict[str, torch.Tensor]) -> FloatArray:
    return np.concatenate([tensor.numpy().astype(np.float64) for tensor in tensors.values()])


def sha256(weights: torch.Tensor) -> str:
    """Hash weights to the bit: equal on all ranks, or they have drifted apart."""
    return hashlib.sha256(weights.contiguous().numpy().tobytes()).hexdigest()
