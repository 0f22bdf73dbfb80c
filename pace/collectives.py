"""What one collective costs, as a curve over bytes: formulas of algorithms, and curves through measurements.

The documents (``pace.documents.collective_costs``) hold each formula in words. Symbols: n workers, alpha
latency of one message in seconds, B bandwidth of one link in bytes per second, gamma seconds to reduce one
byte. One worker has nothing to reduce, so its curve is ``FREE``.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pace.solver.cost_curve import CostCurve

FREE = CostCurve.affine(0.0, 0.0)


class Link(Protocol):
    """A link between two workers; without `reduce_bytes_per_s`, reducing takes no time."""

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """B."""

    @property
    def latency_s(self) -> float:
        """Alpha."""

    @property
    def reduce_bytes_per_s(self) -> float | None:
        """1 / gamma."""


def ring_factors(workers: int) -> tuple[int, float]:
    """Return the messages of a ring all-reduce and the share of the buffer that each worker sends."""
    return 2 * (workers - 1), 2 * (workers - 1) / workers


def ring(workers: int, link: Link) -> CostCurve:
    """Ring all-reduce (the PACE paper's eq. 1)."""
    messages, sent = ring_factors(workers)
    return _curve(workers, link, messages, sent, sent / 2)


def halving_doubling(workers: int, link: Link) -> CostCurve:
    """Recursive halving and doubling; workers beyond a power of two are folded in and out."""
    rounds = workers.bit_length() - 1
    power = 1 << rounds
    folded = 0 if power == workers else 1
    share = (power - 1) / power
    return _curve(workers, link, 2 * (rounds + folded), 2 * (share + folded), share + folded)


def tree(workers: int, link: Link) -> CostCurve:
    """Binary tree, reduce then broadcast."""
    depth = math.ceil(math.log2(workers))
    return _curve(workers, link, 2 * depth, 2 * depth, depth)


def two_level(workers: int, workers_per_node: int, intra: Link, inter: Link) -> CostCurve:
    """A ring inside each node and one between nodes; ValueError if the workers do not fill whole nodes."""
    local = min(workers_per_node, workers)
    if workers % local:
        raise ValueError(f"{workers} workers cannot be divided into nodes of {local}")
    return _sum(ring(local, intra), ring(workers // local, inter))


def halved(curve: CostCurve) -> CostCurve:
    """Return half of a curve: what each half of an all-reduce costs where nothing tells them apart."""
    return CostCurve(
        sizes_bytes=curve.sizes_bytes,
        durations_s=tuple(seconds / 2 for seconds in curve.durations_s),
        slope_beyond=curve.slope_beyond / 2,
    )


def ring_halves(workers: int, link: Link) -> tuple[CostCurve, CostCurve]:
    """Ring reduce-scatter and all-gather: n - 1 messages and (n-1)/n of the buffer each; the first adds."""
    messages, sent = ring_factors(workers)
    return (
        _curve(workers, link, messages / 2, sent / 2, sent / 2),
        _curve(workers, link, messages / 2, sent / 2, 0),
    )


def halving_doubling_halves(workers: int, link: Link) -> tuple[CostCurve, CostCurve]:
    """Recursive halving, and recursive doubling; workers beyond a power of two are folded in, and out."""
    rounds = workers.bit_length() - 1
    power = 1 << rounds
    folded = 0 if power == workers else 1
    sent = (power - 1) / power + folded
    return (
        _curve(workers, link, rounds + folded, sent, sent),
        _curve(workers, link, rounds + folded, sent, 0),
    )


def tree_halves(workers: int, link: Link) -> tuple[CostCurve, CostCurve]:
    """Binary tree: reduce to the root, then scatter; gather at the root, then broadcast.

    A scatter or gather over a binomial tree takes ceil(lg n) messages and (n-1)/n of the buffer (Thakur,
    Rabenseifner, Gropp 2005, section 3), so the halves cost more together than the tree's all-reduce.
    """
    depth = math.ceil(math.log2(workers))
    sent = depth + (workers - 1) / workers
    return _curve(workers, link, 2 * depth, sent, depth), _curve(workers, link, 2 * depth, sent, 0)


def two_level_halves(
    workers: int, workers_per_node: int, intra: Link, inter: Link
) -> tuple[CostCurve, CostCurve]:
    """Halves of a ring inside each node and of one between nodes; ValueError as ``two_level`` raises it."""
    local = min(workers_per_node, workers)
    if workers % local:
        raise ValueError(f"{workers} workers cannot be divided into nodes of {local}")
    inside, between = ring_halves(local, intra), ring_halves(workers // local, inter)
    return _sum(inside[0], between[0]), _sum(inside[1], between[1])


def _sum(first: CostCurve, second: CostCurve) -> CostCurve:
    lines = [curve.line for curve in (first, second)]
    return CostCurve.affine(
        sum(line.latency_s for line in lines if line), sum(line.seconds_per_byte for line in lines if line)
    )


LATENCY_MEASURED_BYTES = 1 << 16
MESSAGE_LATENCY_S = 10e-6


def through_samples(samples: Sequence[tuple[float, float]], workers: int) -> CostCurve:
    """Return g through measured (bytes, seconds) pairs: averaged, smoothed until none falls, extrapolated.

    Below a smallest sample of more than ``LATENCY_MEASURED_BYTES`` g falls in a line towards a latency that
    nobody measured: a tree's 2 ceil(lg n) messages of ``MESSAGE_LATENCY_S``, and no more than the smallest
    sample. Smaller samples are latency themselves, and below them g is constant. Beyond the largest sample g
    goes on with the slope from the largest size that is at most half of it and took less time, or from the
    origin; never steeper than the least time per byte of any sample, so that two calls are never faster than
    one where nothing was measured.
    """
    sizes, inverse, counts = np.unique([size for size, _ in samples], return_inverse=True, return_counts=True)
    means = np.bincount(inverse, weights=[seconds for _, seconds in samples]) / counts
    if np.any(np.diff(means) < 0):
        from scipy.optimize import isotonic_regression  # 0.2 s to import, and only noise needs it

        means = np.asarray(isotonic_regression(means, weights=counts).x)
    slope = float(np.min(means / sizes))
    apart = np.flatnonzero((2 * sizes <= sizes[-1]) & (means < means[-1]))
    if apart.size:
        slope = min(slope, float((means[-1] - means[apart[-1]]) / (sizes[-1] - sizes[apart[-1]])))
    knots, durations = tuple(sizes.tolist()), tuple(means.tolist())
    if knots[0] > LATENCY_MEASURED_BYTES:
        latency = min(durations[0], 2 * math.ceil(math.log2(max(workers, 2))) * MESSAGE_LATENCY_S)
        knots, durations = (0.0, *knots), (latency, *durations)
    return CostCurve(sizes_bytes=knots, durations_s=durations, slope_beyond=slope)


def _curve(workers: int, link: Link, messages: float, sent: float, reduced: float) -> CostCurve:
    if workers == 1:
        return FREE
    gamma = 0.0 if link.reduce_bytes_per_s is None else 1.0 / link.reduce_bytes_per_s
    return CostCurve.affine(messages * link.latency_s, sent / link.bandwidth_bytes_per_s + reduced * gamma)
