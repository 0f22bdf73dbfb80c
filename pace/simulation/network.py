"""The network: one transfer at a time, in the order in which they were handed over."""

import numpy as np

from pace.simulation.traffic import Rules, Traffic
from pace.solver.arrays import FloatArray


def carry(traffic: Traffic, rules: Rules) -> tuple[FloatArray, FloatArray]:
    """Return when every transfer starts and ends, in seconds.

    Whenever the credit admits one, the released transfer of smallest priority is handed over. Transfers are
    then served first come, first served, without preemption. O(n log n).
    """
    from pace.simulation.kernels import network as kernel

    starts, ends = np.empty(len(traffic.release_s)), np.empty(len(traffic.release_s))
    kernel.carry(
        traffic.release_s,
        traffic.duration_s,
        traffic.size_bytes.astype(np.float64),
        np.argsort(traffic.priority, kind="stable"),
        traffic.after,
        rules.credit_bytes,
        rules.overshoots,
        rules.in_order,
        starts,
        ends,
    )
    return starts, ends
