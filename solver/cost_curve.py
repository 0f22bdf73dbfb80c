"""The duration of one collective as a function of its bytes: monotone and piecewise linear, with g(0) = 0.

Every cost that the documents of ``pace.documents`` describe is such a curve once the number of workers is
known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pace.solver.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The straight line x -> latency_s + x * seconds_per_byte."""

    latency_s: float
    seconds_per_byte: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCurve:
    """The curve g through knots: constant below the first knot, a straight line beyond the last.

    Attributes
    ----------
    sizes_bytes, durations_s : tuples of equal length, at least one knot
        Strictly increasing sizes and non-decreasing durations.
    slope_beyond : float
        Seconds per byte beyond the last knot.
    """

    sizes_bytes: tuple[float, ...]
    durations_s: tuple[float, ...]
    slope_beyond: float

    @classmethod
    def affine(cls, latency_s: float, seconds_per_byte: float) -> "CostCurve":
        """Return g(x) = latency_s + x * seconds_per_byte for x > 0."""
        return cls(sizes_bytes=(0.0,), durations_s=(latency_s,), slope_beyond=seconds_per_byte)

    @property
    def line(self) -> Line | None:
        """The straight line that equals g for all x > 0, or None if g has more than one slope."""
        if self.sizes_bytes == (0.0,):
            return Line(latency_s=self.durations_s[0], seconds_per_byte=self.slope_beyond)
        return None

    def __call__(self, size_bytes: npt.ArrayLike) -> FloatArray:
        """Return the durations, in seconds, of collectives of `size_bytes`; an array of the same shape."""
        size = np.asarray(size_bytes, dtype=np.float64)
        if self.sizes_bytes == (0.0,):
            return np.where(size > 0, self.durations_s[0] + size * self.slope_beyond, 0.0)
        beyond = np.maximum(size - self.sizes_bytes[-1], 0.0) * self.slope_beyond
        return np.where(size > 0, np.interp(size, self.sizes_bytes, self.durations_s) + beyond, 0.0)

    def faster(self, factor: float) -> "CostCurve":
        """Return the curve with every duration divided by `factor`."""
        if factor == 1:
            return self
        return CostCurve(
            sizes_bytes=self.sizes_bytes,
            durations_s=tuple(duration / factor for duration in self.durations_s),
            slope_beyond=self.slope_beyond / factor,
        )

    def slower(self, extra_s: float) -> "CostCurve":
        """Return the curve with every duration longer by `extra_s`."""
        return CostCurve(
            sizes_bytes=self.sizes_bytes,
            durations_s=tuple(duration + extra_s for duration in self.durations_s),
            slope_beyond=self.slope_beyond,
        )

    def plus(self, other: "CostCurve") -> "CostCurve":
        """Return the curve with the durations of both added."""
        sizes = sorted({*self.sizes_bytes, *other.sizes_bytes})
        durations = self._at(sizes) + other._at(sizes)
        return CostCurve(
            sizes_bytes=tuple(sizes),
            durations_s=tuple(durations.tolist()),
            slope_beyond=self.slope_beyond + other.slope_beyond,
        )

    def _at(self, sizes: Sequence[float]) -> FloatArray:
        # Unlike a call of 0 bytes, a knot at 0 has the durations of the smallest sizes.
        beyond = np.maximum(np.array(sizes) - self.sizes_bytes[-1], 0.0) * self.slope_beyond
        return np.asarray(np.interp(sizes, self.sizes_bytes, self.durations_s) + beyond)

    def knots(self) -> tuple[FloatArray, FloatArray, float]:
        """Return the knots' sizes (bytes) and durations (seconds), and the slope beyond, for the kernels."""
        # Whole numbers would be another type, for which kernels would be compiled once more.
        sizes = np.array(self.sizes_bytes, dtype=np.float64)
        return sizes, np.array(self.durations_s, dtype=np.float64), self.slope_beyond

    def minorants(self, largest_bytes: float) -> tuple[Line, ...]:
        """Return the greatest lines below g on (0, largest_bytes] whose latency is not negative.

        They are edges of g's lower convex hull, and the steepest line through the origin. An edge with a
        negative latency would not bound the sum of several calls. Each line is a valid lower bound. None is
        the best for all sizes, so take the maximum over them.
        """
        if self.line is not None:
            return (self.line,)
        knots = zip(self.sizes_bytes, self.durations_s, strict=True)
        inner = [(x, y) for x, y in knots if 0 < x < largest_bytes]
        points = [(0.0, self.durations_s[0]), *inner, (largest_bytes, float(self(largest_bytes)))]
        lines = [Line(latency_s=0.0, seconds_per_byte=min(y / x for x, y in points[1:]))]
        for (x0, y0), (x1, y1) in pairwise(_lower_hull(points)):
            slope = (y1 - y0) / (x1 - x0)
            if y0 - slope * x0 >= 0:
                lines.append(Line(latency_s=y0 - slope * x0, seconds_per_byte=slope))
        return tuple(lines)


def _lower_hull(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    hull: list[tuple[float, float]] = []
    for x, y in points:
        while len(hull) >= 2:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x - x0) < (y - y0) * (x1 - x0):
                break
            hull.pop()
        hull.append((x, y))
    return hull
