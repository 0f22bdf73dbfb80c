"""The broadcast shop: buckets cross one link, one at a time, and each receiver then works on them.

It is a two-stage flow shop with one second machine for each receiver. A bucket's bytes are held by the
receivers from the start of its transfer until its last receiver has finished it. With a byte credit, at most
so many bytes are held at a time. All receivers take buckets in the order of the link, so an order is a
schedule: everything starts as early as the order and the credit allow, and no later start helps.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.flow_shop.two_links import johnson_order

# 8 buckets have 40,320 orders: a fraction of a second.
MOST_ENUMERATED = 8
# The search tries n^2 moves a round, each in O(n).
MOST_SEARCHED = 80
BoundKind = Literal["johnson", "credit", "alone"]
NO_CREDIT = np.iinfo(np.int64).max
PRECISION = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastShop:
    """Buckets of fixed content.

    Attributes
    ----------
    link_s : array of shape (num_buckets,)
        Seconds for which each bucket occupies the link.
    work_s : array of shape (num_receivers, num_buckets)
        Seconds of each receiver's own work on each bucket.
    size_bytes : integer array of shape (num_buckets,)
    lag_s : array of shape (num_receivers,)
        Seconds after the link's end when a bucket is whole at each receiver.
    credit_bytes : int
        Most bytes that are held at a time; no bucket is larger. `NO_CREDIT` for no limit.
    """

    link_s: FloatArray
    work_s: FloatArray
    size_bytes: IntArray
    lag_s: FloatArray
    credit_bytes: int = NO_CREDIT

    def __len__(self) -> int:
        return len(self.link_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastTimes:
    """Times of transfers and of work, in seconds; arrays by place in the order.

    Attributes
    ----------
    starts, ends : arrays of shape (num_buckets,)
        Of transfers on the link.
    finished : array of shape (num_receivers, num_buckets)
        When each receiver has finished its work on the bucket.
    """

    starts: FloatArray
    ends: FloatArray
    finished: FloatArray

    @property
    def pause_s(self) -> float:
        """Time at which the last receiver has finished the last bucket; 0 without buckets."""
        return float(np.max(self.finished, initial=0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderBound:
    """Bound on every order of these buckets.

    Attributes
    ----------
    kind
        "johnson": the optimum of one receiver with unlimited buffers. "credit": what the buckets hold, bytes
        times seconds, over the credit. "alone": buckets of more than half the credit, one after another.
    receiver
        The one from which it follows.
    """

    kind: BoundKind
    receiver: int
    bound_s: float


def times_in_order(shop: BroadcastShop, order: IntArray) -> BroadcastTimes:
    """Return when buckets are sent and finished in this order, in O(buckets * receivers)."""
    from pace_sync.solver import broadcast_kernel as kernel

    starts = np.empty(len(shop))
    finished = np.empty((len(shop.lag_s), len(shop)))
    kernel.send_in_order(*_arrays(shop), order, starts, finished)
    return BroadcastTimes(starts=starts, ends=starts + shop.link_s[order], finished=finished)


def pause_in_order(shop: BroadcastShop, order: IntArray) -> float:
    """Return when the last receiver has finished, in seconds."""
    from pace_sync.solver import broadcast_kernel as kernel

    return float(kernel.pause_in_order(*_arrays(shop), order))


def order_bound(shop: BroadcastShop) -> OrderBound:
    """Return the largest of the bounds that hold for every order of these buckets.

    With unlimited buffers and one receiver, or receivers for which one order is Johnson's of each, it is
    the optimum.
    """
    best = OrderBound(kind="johnson", receiver=0, bound_s=0.0)
    for number, (work, lag) in enumerate(zip(shop.work_s, shop.lag_s.tolist(), strict=True)):
        alone = BroadcastShop(
            link_s=shop.link_s, work_s=work[None, :], size_bytes=shop.size_bytes, lag_s=np.array([lag])
        )
        found: dict[BoundKind, float] = {"johnson": pause_in_order(alone, johnson_order(shop.link_s, work))}
        if shop.credit_bytes != NO_CREDIT and len(shop):
            held = shop.link_s + lag + work
            found["credit"] = float(np.sum(held * shop.size_bytes) / shop.credit_bytes)
            found["alone"] = float(np.sum(held[2 * shop.size_bytes > shop.credit_bytes]))
        for kind, bound in found.items():
            if bound > best.bound_s:
                best = OrderBound(kind=kind, receiver=number, bound_s=bound)
    return best


def best_order(shop: BroadcastShop) -> tuple[IntArray, str]:
    """Return the best order found, and how it was found, in words.

    Theorem (Johnson 1954). With unlimited buffers and one receiver, the pause is least if buckets whose
    transfer is shorter than their work come first, by increasing transfer, and the others last, by decreasing
    work. A lag that is the same for all buckets shifts every schedule alike. If one order is Johnson's of
    each receiver, it is best for each, and so for the last of them.

    Guarantee: exact where the pause equals `order_bound`, which Johnson's case always does, and with up to
    `MOST_ENUMERATED` buckets, whose orders are all tried. Otherwise a search by insertion, or for more than
    `MOST_SEARCHED` buckets the best of its seeds.
    """
    from pace_sync.solver import broadcast_kernel as kernel

    bound = order_bound(shop).bound_s
    order = min(_seeds(shop), key=lambda seed: pause_in_order(shop, seed))  # the first of equals
    if pause_in_order(shop, order) <= bound * (1 + PRECISION):
        return order, "Johnson's order"
    if len(shop) <= MOST_ENUMERATED:
        best = order.copy()
        kernel.enumerate_orders(*_arrays(shop), best)
        return best, "all orders tried"
    return (
        searched_order(shop, enough_s=bound) if len(shop) <= MOST_SEARCHED else order
    ), "search by insertion"


def searched_order(shop: BroadcastShop, *, enough_s: float = 0.0) -> IntArray:
    """Return the best order that moves of single buckets reach from the seeds: a heuristic, O(n^3) each."""
    from pace_sync.solver import broadcast_kernel as kernel

    found = _seeds(shop)
    for order in found:
        if kernel.reinsert(*_arrays(shop), order, enough_s) <= enough_s:
            return order
    return min(found, key=lambda order: pause_in_order(shop, order))


def _seeds(shop: BroadcastShop) -> list[IntArray]:
    """Return the given order, and Johnson's of each receiver and of the slowest at each bucket."""
    orders = [np.arange(len(shop), dtype=np.int64)]
    orders += [johnson_order(shop.link_s, work) for work in shop.work_s]
    return [*orders, johnson_order(shop.link_s, np.max(shop.work_s, axis=0))]


def _arrays(shop: BroadcastShop) -> tuple[FloatArray, FloatArray, IntArray, FloatArray, int]:
    return shop.link_s, shop.work_s, shop.size_bytes, shop.lag_s, shop.credit_bytes
