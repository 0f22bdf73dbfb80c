"""Fragments of layers that may be cut anywhere: the plan of Theorem 2 in ``capacity``.

A link's windows fill the end of the period. Its bytes go to windows in proportion to their room, so that what
is spare is spare everywhere. Of numbers of fragments that leave a tenth of every window spare, the least is
taken, and delays are as short as that tenth allows.
"""

from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray
from pace_sync.solver.streaming.capacity import StreamingLinks, capacity

FILLED = 0.9
ROUNDED_UP = 1 + 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingWindow:
    """Bytes that a link carries between two boundaries."""

    link: int
    size_bytes: float
    send_step: int
    delay_steps: int


def fill_windows(links: StreamingLinks, size_bytes: float, period_s: float) -> list[StreamingWindow]:
    """Return windows that carry all bytes in a period of this length, ordered by their beginning.

    The period is that of ``least_period``, or longer.
    """
    room = capacity(links, period_s)
    if not room.any():  # all bytes together take less time than a period is rounded by
        period_s *= ROUNDED_UP
        room = capacity(links, period_s)
    used = np.argsort(-room, kind="stable")[: links.most_fragments]
    used = used[room[used] > 0]
    shares = size_bytes * room / room[used].sum()
    left = links.most_fragments
    windows: list[StreamingWindow] = []
    for place, link in enumerate(used.tolist(), start=1):
        made = _of_link(links, link, float(shares[link]), period_s, left - (len(used) - place))
        left -= len(made)
        windows += made
    return sorted(windows, key=lambda window: window.send_step)


def _of_link(
    links: StreamingLinks, link: int, share: float, period_s: float, most: int
) -> list[StreamingWindow]:
    steps, delay, step = links.period_steps, links.most_delay, links.step_s
    call, rate = float(links.call_s[link]), float(links.seconds_per_byte[link])
    best: tuple[float, FloatArray, list[int]] | None = None
    for count in range(1, min(most, steps) + 1):
        widths = _widths(steps, delay, count)
        room = np.array(widths, dtype=float) * step
        room[-1] += period_s - links.compute_s
        useful = np.maximum(room - call, 0.0)
        if useful.sum() <= 0:
            continue
        filled = (call + share * rate * useful / useful.sum())[useful > 0] / room[useful > 0]
        fullest = float(np.max(filled))
        if best is None or fullest < best[0]:
            best = fullest, useful, widths
        if fullest <= FILLED or count * delay >= steps:
            break
    assert best is not None, "a link with room has a window with room"
    _, useful, widths = best
    sizes = share * useful / useful.sum()
    begins = steps - sum(widths) + np.concatenate([[0], np.cumsum(widths)[:-1]]).astype(int)
    windows = []
    for width, size, begin in zip(widths, sizes.tolist(), begins.tolist(), strict=True):
        if size <= 0:
            continue
        taken = call + size * rate
        needed = next((each for each in range(width + 1) if taken <= FILLED * each * step), width)
        windows.append(
            StreamingWindow(link=link, size_bytes=size, send_step=begin % steps, delay_steps=needed)
        )
    return windows


def _widths(steps: int, delay: int, count: int) -> list[int]:
    """Return the steps of each window: as equal as may be, and no longer than the delay."""
    whole = min(steps, count * delay)
    return [(whole * (place + 1)) // count - (whole * place) // count for place in range(count)]
