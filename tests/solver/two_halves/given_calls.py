"""What given calls take on either side of a norm."""

import numpy as np

from pace.solver.cost_curve import CostCurve
from pace.solver.two_halves.calls import Half


def end_of_reduce_scatters(scattered: Half, cost: CostCurve) -> float:
    """Return when the last of these calls ends, first in, first out; 0 without calls."""
    now = 0.0
    durations = scattered.durations(cost)
    for number in np.argsort(scattered.times, kind="stable"):
        now = max(now, float(scattered.times[number])) + float(durations[number])
    return now


def longest_after_norm(gathered: Half, cost: CostCurve) -> float:
    """Return max over k of (b_1 + ... + b_k + q_k), longest tail first; 0 without calls."""
    order = np.argsort(-gathered.times, kind="stable")
    ends = np.cumsum(gathered.durations(cost)[order])
    return float(np.max(ends + gathered.times[order], initial=0.0))
