"""Compares plans over sampled windows with random op durations."""

from dataclasses import dataclass, replace

import numpy as np

from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.jitter import jittered_durations
from pace.planning.fusion.problem import stops_at_barrier
from pace.solver.arrays import FloatArray
from pace.solver.cost import CostCurve
from pace.solver.sending import Buffers, Sending

SEED = 20200706


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledWindows:
    """Windows with random op durations.

    Attributes
    ----------
    ready, tail : arrays of shape (num_scenarios, num_gradients)
        Seconds.
    compute_s : array of shape (num_scenarios,)
        Length of each window without any all-reduce, in seconds.
    """

    ready: FloatArray
    tail: FloatArray
    compute_s: FloatArray


def sample(profile: Profile, options: Options) -> SampledWindows:
    """Sample ``options.scenarios`` windows with jittered op durations; the seed is fixed."""
    durations = jittered_durations(profile, jitter=options.jitter, count=options.scenarios, seed=SEED)
    timings = [profile.timing_of(replace(profile.graph, durations_s=row)) for row in durations]
    tail = np.array([timing.tail_s for timing in timings])
    if stops_at_barrier(profile, options):
        tail = np.broadcast_to(tail.max(axis=1, initial=0.0, keepdims=True), tail.shape)
    return SampledWindows(
        ready=np.array([timing.ready_s for timing in timings]),
        tail=tail,
        compute_s=np.array([timing.compute_s for timing in timings]),
    )


def price(
    scenarios: SampledWindows,
    partition: tuple[tuple[int, ...], ...],
    buffers: Buffers,
    sending: Sending,
    cost: CostCurve,
    options: Options,
) -> float:
    """Return the mean or 95th percentile of the window in seconds.

    In every scenario the segments are sent in the same order.
    """
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
