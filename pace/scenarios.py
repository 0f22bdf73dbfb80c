"""Plans compared over sampled windows in which op durations jitter (DESIGN 5)."""

from dataclasses import dataclass, replace

import numpy as np

from pace.graph import FloatArray
from pace.options import Options
from pace.profile import Profile
from pace.solver.cost import CostCurve
from pace.solver.sending import Buffers, Sending

SEED = 20200706


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenarios:
    """Sampled windows.

    Attributes
    ----------
    ready, tail : arrays of shape (num_scenarios, num_gradients)
        Seconds.
    compute_s : array of shape (num_scenarios,)
        The window without any all-reduce.
    """

    ready: FloatArray
    tail: FloatArray
    compute_s: FloatArray


def sample(profile: Profile, options: Options) -> Scenarios:
    """Draw lognormal op durations with the profile's means and standard deviations; always the same ones."""
    generator = np.random.Generator(np.random.PCG64(SEED))
    mean = np.array([op.duration_s for op in profile.ops])
    measured = np.array([op.duration_std_s for op in profile.ops])
    variation = np.divide(measured, mean, out=np.zeros_like(mean), where=mean > 0)
    variation = np.where(measured > 0, variation, options.jitter)
    sigma = np.sqrt(np.log1p(variation**2))
    timings = []
    for _ in range(options.scenarios):
        factors = np.exp(sigma * generator.standard_normal(len(mean)) - sigma**2 / 2)
        timings.append(profile.timing_of(replace(profile.graph, durations_s=mean * factors)))
    tail = np.array([timing.tail_s for timing in timings])
    if options.target != "pace":
        tail = np.broadcast_to(tail.max(axis=1, initial=0.0, keepdims=True), tail.shape)
    return Scenarios(
        ready=np.array([timing.ready_s for timing in timings]),
        tail=tail,
        compute_s=np.array([timing.compute_s for timing in timings]),
    )


def price(
    scenarios: Scenarios,
    partition: tuple[tuple[int, ...], ...],
    buffers: Buffers,
    sending: Sending,
    cost: CostCurve,
    options: Options,
) -> float:
    """Return the mean or 95th percentile of the window; the segments keep their order in every scenario."""
    ready = np.empty((len(scenarios.compute_s), len(partition)))
    tail = np.empty_like(ready)
    for number, group in enumerate(partition):
        ready[:, number] = scenarios.ready[:, list(group)].max(axis=1)
        tail[:, number] = scenarios.tail[:, list(group)].max(axis=1)
    completion = ready.copy()
    now = np.zeros(len(ready))
    durations = cost(sending.elements * buffers.element_bytes[sending.groups])
    for group, duration in zip(sending.groups.tolist(), durations.tolist(), strict=True):
        now = np.maximum(now, ready[:, group]) + duration
        completion[:, group] = now
    windows = np.maximum(scenarios.compute_s, (completion + tail).max(axis=1, initial=0.0))
    return float(windows.mean() if options.risk == "mean" else np.percentile(windows, 95))
