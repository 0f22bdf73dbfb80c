"""The network: one transfer at a time, in the order in which they were handed over."""

from dataclasses import dataclass

import numpy as np

from pace.simulation.traffic import Rules, Traffic
from pace.solver.arrays import FloatArray, IntArray
from pace.solver.cost_curve import CostCurve


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideCompute:
    """What makes transfers slower while compute runs.

    Attributes
    ----------
    extra
        How much longer a transfer takes as a function of its bytes.
    backward_s
        Until when compute runs in any case.
    tail_s : array of shape (num_gradients,)
        The tail of each gradient. After `backward_s`, compute runs while the consumers of gradients, longest
        tail first, have what they wait for.
    """

    extra: CostCurve
    backward_s: float
    tail_s: FloatArray


def carry(
    traffic: Traffic, rules: Rules, beside: BesideCompute | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return when every transfer starts and ends, in seconds.

    Whenever the credit admits one, the released transfer of smallest priority is handed over. Transfers are
    then served first come, first served, without preemption. O(n log n).
    """
    from pace.simulation.kernels import network as kernel

    num = len(traffic.release_s)
    starts, ends = np.empty(num), np.empty(num)
    none = np.zeros(0, dtype=np.int64)
    extra, tail = np.zeros(0), np.zeros(0)
    carried, first_carried, missing, by_tail = none, np.zeros(num + 1, dtype=np.int64), none, none
    backward_s = 0.0
    if beside is not None:
        extra, tail, backward_s = beside.extra(traffic.size_bytes), beside.tail_s, beside.backward_s
        carried, first_carried, missing = _carried(traffic)
        sent = np.flatnonzero(missing)
        by_tail = sent[np.argsort(-tail[sent], kind="stable")]
    kernel.carry(
        traffic.release_s,
        traffic.duration_s,
        traffic.size_bytes.astype(np.float64),
        np.argsort(traffic.priority, kind="stable"),
        traffic.after,
        rules.credit_bytes,
        rules.overshoots,
        rules.in_order,
        extra,
        carried,
        first_carried,
        missing,
        tail,
        by_tail,
        backward_s,
        starts,
        ends,
    )
    return starts, ends


def _carried(traffic: Traffic) -> tuple[IntArray, IntArray, IntArray]:
    """Return the gradients by transfer, where those of each transfer begin, and each gradient's transfers."""
    counts = np.array([len(carriers) for carriers in traffic.carriers], dtype=np.int64)
    transfers = np.concatenate([np.zeros(0, dtype=np.int64), *traffic.carriers])
    gradients = np.repeat(np.arange(len(counts)), counts)
    order = np.argsort(transfers, kind="stable")
    first = np.searchsorted(transfers[order], np.arange(len(traffic.release_s) + 1))
    return gradients[order], first, counts
