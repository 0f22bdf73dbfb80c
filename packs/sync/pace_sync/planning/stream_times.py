"""The simulator of resharding: streams that run at the same time and share links max-min fairly."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray

_SAME = 1 + 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOnLinks:
    """Bytes that cross several links at one rate: from the sender and through each receiver of the chain."""

    size_bytes: int
    links: tuple[int, ...]


def stream_times(streams: Sequence[StreamOnLinks], capacity: FloatArray) -> list[float]:
    """Return when each stream has ended, if all begin at 0.

    Rates are max-min fair, as those of TCP flows roughly are: no stream can be faster unless a slower one
    becomes slower. They change when a stream ends. Takes O(streams * links) for each end.
    """
    uses = np.zeros((len(streams), len(capacity)), dtype=np.bool_)
    for number, stream in enumerate(streams):
        uses[number, list(stream.links)] = True
    left = np.array([stream.size_bytes for stream in streams], dtype=np.float64)
    ends = np.zeros(len(streams))
    active = left > 0
    now = 0.0
    while active.any():
        rates = _fair_rates(uses[active], capacity)
        numbers = np.flatnonzero(active)
        seconds = left[numbers] / rates
        step = float(seconds.min())
        now += step
        over = seconds <= step * _SAME
        left[numbers] -= rates * step
        ends[numbers[over]] = now
        active[numbers[over]] = False
    return [float(each) for each in ends]


def _fair_rates(uses: np.ndarray[tuple[int, int], np.dtype[np.bool_]], capacity: FloatArray) -> FloatArray:
    """Fill up all streams together until a link is full; those on it keep their rate, the others go on."""
    rates = np.zeros(len(uses))
    open_streams = np.ones(len(uses), dtype=np.bool_)
    room = capacity.copy()
    while open_streams.any():
        users = uses[open_streams].sum(axis=0)
        used = users > 0
        share = np.full(len(capacity), np.inf)
        share[used] = room[used] / users[used]
        least = float(share.min())
        fixed = open_streams & (uses & (share <= least * _SAME)).any(axis=1)
        rates[fixed] = least
        room = np.maximum(room - uses[fixed].sum(axis=0) * least, 0.0)
        open_streams &= ~fixed
    return rates
