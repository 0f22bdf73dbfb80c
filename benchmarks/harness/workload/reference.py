"""The weights that training must give, computed in one process without any all-reduce.

The replay's gradient is ``p + s d``; averaged over ranks, ``p + s mean(d)``. Plain SGD on that in float64 is
what every contender's weights are held against.
"""

import hashlib
import math

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.harness.workload.replay import directions_of, initial_weights
from pace.documents.profile import ELEMENT_BYTES, Profile

LEARNING_RATE = 0.02

# Sums of float32 in another order; of weights of size 1 after tens of updates.
TOLERANCE = 2e-5

# What ``torch.nn.utils.clip_grad_norm_`` adds to the norm.
_TORCHS_EPSILON = 1e-6

FloatArray = npt.NDArray[np.float64]


def scale_of(iteration: int) -> float:
    """Return s, the input of an iteration; the same on all ranks, exact in float32."""
    return 0.5 + (iteration % 7) / 64


def norm_to_clip_to(profile: Profile) -> float:
    """Return a norm that the replay's gradients exceed about twice, so that every iteration clips.

    An element's gradient is normal with a variance of a little more than 1.
    """
    elements = sum(gradient.size_bytes // ELEMENT_BYTES[gradient.dtype] for gradient in profile.gradients)
    return 0.5 * math.sqrt(elements)


def expected_weights(
    profile: Profile, *, workers: int, iterations: int, max_norm: float | None = None
) -> FloatArray:
    """Return all weights after so many iterations, in the order of the profile's gradients.

    Parameters
    ----------
    max_norm
        What gradients are clipped to by their global norm, as torch does it; None where they are not.
    """
    mean = sum(_flat(directions_of(profile, rank)) for rank in range(workers)) / workers
    weights = _flat(initial_weights(profile))
    for iteration in range(iterations):
        gradient = weights + scale_of(iteration) * mean
        if max_norm is not None:
            gradient *= min(max_norm / (float(np.linalg.norm(gradient)) + _TORCHS_EPSILON), 1.0)
        weights = weights - LEARNING_RATE * gradient
    return weights


def _flat(tensors: dict[str, torch.Tensor]) -> FloatArray:
    return np.concatenate([tensor.numpy().astype(np.float64) for tensor in tensors.values()])


def sha256(weights: torch.Tensor) -> str:
    """Hash weights to the bit: equal on all ranks, or they have drifted apart."""
    return hashlib.sha256(weights.contiguous().numpy().tobytes()).hexdigest()
