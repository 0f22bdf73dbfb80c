"""Op durations that vary from window to window."""

import numpy as np

from pace.documents.profile import Profile
from pace.solver.arrays import FloatArray


def jittered_durations(profile: Profile, *, jitter: float, count: int, seed: int) -> FloatArray:
    """Draw lognormal op durations with the profile's means and standard deviations.

    Parameters
    ----------
    jitter
        Relative standard deviation of ops that the profile gives none.
    seed
        Same seed, same durations.

    Returns
    -------
    array of shape (count, num_ops)
        Seconds.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    mean = np.array([op.duration_s for op in profile.ops])
    measured = np.array([op.duration_std_s for op in profile.ops])
    variation = np.divide(measured, mean, out=np.zeros_like(mean), where=mean > 0)
    sigma = np.sqrt(np.log1p(np.where(measured > 0, variation, jitter) ** 2))
    normal = generator.standard_normal((count, len(mean)))
    return np.asarray(mean * np.exp(sigma * normal - sigma**2 / 2))
