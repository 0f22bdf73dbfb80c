"""Senders with groups and segments that are fixed before training, as most policies have."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from pace.errors import InvalidOptions
from pace.simulation.traffic import Rules, T, Traffic, over_runs
from pace.solver.arrays import FloatArray, IntArray
from pace.solver.cost_curve import CostCurve

# More take many minutes, and gigabytes.
MOST_SEGMENTS = 10_000_000


@dataclass(frozen=True, kw_only=True)
class GroupedSender:
    """Sends fixed groups in fixed segments.

    Attributes
    ----------
    groups
        The numbers of each group's gradients.
    segment_groups, segment_bytes : integer arrays of shape (num_segments,)
        The group and the bytes of each segment.
    priority : array of shape (num_segments,)
        The priority of each segment; None for first ready, first sent.
    """

    groups: tuple[tuple[int, ...], ...]
    segment_groups: IntArray
    segment_bytes: IntArray
    cost: CostCurve
    rules: Rules
    num_gradients: int
    priority: FloatArray | None = None

    def traffic(self, ready_s: FloatArray) -> Traffic:
        """Release every segment when its group's last gradient is ready."""
        release = over_groups(np.maximum, ready_s, self.groups)[self.segment_groups]
        return Traffic(
            release_s=release,
            duration_s=self.cost(self.segment_bytes),
            size_bytes=self.segment_bytes,
            priority=release if self.priority is None else self.priority,
            after=np.full(len(release), -1, dtype=np.int64),
            carriers=carriers(self.groups, self.segment_groups, self.num_gradients),
        )


def over_groups(operation: np.ufunc, values: NDArray[T], groups: Sequence[tuple[int, ...]]) -> NDArray[T]:
    """Reduce the values of each group's gradients to one value by `operation`, in O(gradients)."""
    members = np.fromiter(chain.from_iterable(groups), dtype=np.int64)
    return over_runs(operation, values[members], np.fromiter(map(len, groups), dtype=np.int64))


def carriers(
    groups: Sequence[tuple[int, ...]], segment_groups: IntArray, num_gradients: int
) -> tuple[IntArray, ...]:
    """Return the segments of each gradient's group."""
    order = np.argsort(segment_groups, kind="stable")
    ends = np.searchsorted(segment_groups[order], np.arange(len(groups)), side="right").tolist()
    of_group = [order[start:end] for start, end in pairwise([0, *ends])]
    result = [np.zeros(0, dtype=np.int64)] * num_gradients
    for members, segments in zip(groups, of_group, strict=True):
        for gradient in members:
            result[gradient] = segments
    return tuple(result)


def cut_evenly(sizes: IntArray, element_bytes: IntArray, max_segment_bytes: int) -> tuple[IntArray, IntArray]:
    """Cut buffers into segments of at most `max_segment_bytes`; return each segment's buffer and bytes.

    Raises
    ------
    InvalidOptions
        If there would be too many segments.
    """
    total = int(sizes.sum())
    if total > MOST_SEGMENTS * max(max_segment_bytes, int(element_bytes.max(initial=1))):
        raise InvalidOptions(
            f"segments of {max_segment_bytes:,} bytes would be more than {MOST_SEGMENTS:,}: "
            f"use at least {math.ceil(total / MOST_SEGMENTS):,} bytes"
        )
    groups: list[int] = []
    parts: list[int] = []
    for number, (size, element) in enumerate(zip(sizes.tolist(), element_bytes.tolist(), strict=True)):
        step = max(max_segment_bytes // element, 1) * element
        while size > 0:
            groups.append(number)
            parts.append(min(step, size))
            size -= step  # what is left of this buffer
    return np.array(groups, dtype=np.int64), np.array(parts, dtype=np.int64)
