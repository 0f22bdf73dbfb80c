"""The knee and the dips of a curve of throughput over workers."""

from collections.abc import Iterator
from itertools import pairwise

from pace.documents.throughput.prediction import PredictedPoint

# The least that a worker must add to be worth having, as a share of what the first one gives.
_WORTH_HAVING = 0.25
# A point is a dip if it lies further below the envelope than this share.
_DIP = 0.05


def _envelope(curve: list[PredictedPoint]) -> list[tuple[int, float]]:
    """Return the corners of the upper concave envelope of throughput over workers, from (0, 0) on."""
    corners = [(0, 0.0)]
    for workers, rate in sorted((point.workers, point.throughput) for point in curve):
        while len(corners) > 1:
            (w0, r0), (w1, r1) = corners[-2:]
            if (r1 - r0) * (workers - w0) > (rate - r0) * (w1 - w0):
                break
            corners.pop()
        corners.append((workers, rate))
    return corners


def knee_of(curve: list[PredictedPoint]) -> int | None:
    """Return the most workers of which each added at least a quarter of the first one's throughput, or None.

    None if that holds to the end. A dip, where workers run in lock-step, ends nothing: the curve's concave
    envelope counts.
    """
    corners = _envelope(curve)
    (_, _), (fewest, first) = corners[:2]
    for (w0, r0), (w1, r1) in pairwise(corners[1:]):
        if (r1 - r0) / (w1 - w0) < _WORTH_HAVING * first / fewest:
            return w0
    return corners[-1][0] if len(corners) > 1 and corners[-1][0] < max(p.workers for p in curve) else None


def dips_of(curve: list[PredictedPoint]) -> Iterator[int]:
    """Yield the numbers of workers whose throughput is well below what more and fewer workers suggest."""
    corners = _envelope(curve)
    for point in sorted(curve, key=lambda point: point.workers):
        for (w0, r0), (w1, r1) in pairwise(corners):
            if w0 < point.workers < w1:
                expected = r0 + (r1 - r0) * (point.workers - w0) / (w1 - w0)
                if point.throughput < (1 - _DIP) * expected:
                    yield point.workers
