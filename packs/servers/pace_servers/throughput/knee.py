"""The knee and the dips of a curve of throughput over workers."""

from collections.abc import Iterator
from itertools import pairwise

from pace_servers.documents.prediction import PredictedPoint

# A worker is worthwhile if it adds at least this share of the first worker's throughput.
_WORTH_HAVING = 0.25
# A point is a dip if it is below the envelope by more than this share.
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
    """Return the most workers of which each adds at least a quarter of the first one's throughput.

    None if all do. The curve's concave envelope is used, so a dip, where workers run in lock-step, does not
    count.
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
