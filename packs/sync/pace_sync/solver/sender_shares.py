"""Which sender sends how much, where several hold the same bytes: the least time of the busiest link."""

from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import BoolArray, FloatArray

_SAME = 1e-7

# A sender takes nothing of a class if its rate is below this share of the fastest holder's: the linear
# program takes so small a coefficient for zero, and the sender could carry no larger share.
_LEAST_RATE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderShares:
    """How many bytes of each class each sender sends.

    Attributes
    ----------
    shares : array of shape (num_classes, num_senders)
        Bytes; each row adds up to the size of its class.
    tight : array of shape (num_senders,)
        The senders that prove the bound.
    bound_s
        The bytes that only they hold, over the sum of their rates.
    """

    shares: FloatArray
    tight: BoolArray
    bound_s: float


def share_among_senders(sizes: FloatArray, holds: BoolArray, rates: FloatArray) -> SenderShares:
    """Return the shares whose busiest sender needs the least time.

    A linear program: the sum of a class over its holders is its size, and no sender needs more than T
    seconds. Its optimum has a proof without the program. Take the senders that need T, less those that could
    hand bytes to a sender with time left, directly or through others. Whatever they send, nobody else could:
    so the bytes that only they hold, over the sum of their rates, are T. Exact up to the solver's tolerance.

    Parameters
    ----------
    sizes : array of shape (num_classes,)
        Bytes of each class.
    holds : array of shape (num_classes, num_senders)
        Who holds a class; everyone is held by somebody.
    rates : array of shape (num_senders,)
        Bytes per second of each sender's link.
    """
    total = float(sizes.sum())
    if total == 0.0:
        return SenderShares(
            shares=np.zeros(holds.shape), tight=np.zeros(len(rates), dtype=np.bool_), bound_s=0.0
        )
    shares = np.zeros(holds.shape)
    fast = holds & (rates >= _LEAST_RATE * np.where(holds, rates, 0.0).max(axis=1, keepdims=True))
    if (fast.sum(axis=1) == 1).all():
        shares[fast] = sizes
    else:
        shares = _least_busy(sizes, fast, rates)
    seconds = shares.sum(axis=0) / rates
    tight = _cannot_hand_on(seconds, shares, fast, sizes)
    alone = ~(fast & ~tight).any(axis=1)
    tight |= (holds & ~fast)[alone].any(axis=0)
    return SenderShares(
        shares=shares, tight=tight, bound_s=float(sizes[alone].sum() / max(rates[tight].sum(), 1e-300))
    )


def _least_busy(sizes: FloatArray, holds: BoolArray, rates: FloatArray) -> FloatArray:
    # A large library, which few plans need.
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    # The variables are seconds in which a sender sends bytes of a class, and T, in seconds of the class that
    # takes longest if all its holders send only that.
    fastest = np.where(holds, rates, 0.0).max(axis=1)
    unit_s = float(np.max(sizes / (holds @ rates)))
    classes, senders = np.nonzero(holds)
    count = len(classes)
    numbers = np.arange(count)
    speeds = rates[senders] / fastest[classes]
    whole = coo_array((speeds, (classes, numbers)), shape=(len(sizes), count + 1))
    rows = np.concatenate([senders, np.arange(len(rates))])
    columns = np.concatenate([numbers, np.full(len(rates), count)])
    values = np.concatenate([np.ones(count), -np.ones(len(rates))])
    busy = coo_array((values, (rows, columns)), shape=(len(rates), count + 1))
    cost = np.zeros(count + 1)
    cost[count] = 1.0
    found = linprog(  # type: ignore[call-overload]  # SciPy's stubs do not know sparse arrays
        cost,
        A_ub=busy.tocsr(),
        b_ub=np.zeros(len(rates)),
        A_eq=whole.tocsr(),
        b_eq=sizes / fastest / unit_s,
        method="highs",
    )
    assert found.status == 0, found.message
    shares = np.zeros(holds.shape)
    shares[classes, senders] = np.maximum(found.x[:count], 0.0) * rates[senders]
    small = np.flatnonzero(shares.sum(axis=1) == 0.0)  # in seconds, zero to the program's tolerance
    shares[small, np.where(holds, rates, 0.0).argmax(axis=1)[small]] = sizes[small]
    return np.asarray(shares * (sizes / shares.sum(axis=1))[:, None], dtype=np.float64)


def _cannot_hand_on(
    seconds: FloatArray, shares: FloatArray, holds: BoolArray, sizes: FloatArray
) -> BoolArray:
    """Return the busiest senders that cannot hand bytes to one with time left."""
    roomy = np.asarray(seconds < seconds.max() * (1 - _SAME), dtype=np.bool_)
    sends = shares > _SAME * sizes[:, None]
    while True:
        classes = (holds & roomy).any(axis=1)
        more = np.logical_or(roomy, sends[classes].any(axis=0))
        if (more == roomy).all():
            return np.asarray(~roomy, dtype=np.bool_)
        roomy = more
