"""The least period that links allow, whatever the fragments: a bound, and the theorem behind it.

Notation as in ``pace_sync.solver.streaming``. A link takes `a + b x` seconds for a fragment of `x` bytes.

**Theorem 1.** If a link carries fragments with transfers `p_1..p_P` in a period, then `T >= sum p_k` and
`T >= H c + sum max(0, p_k - tau c)`.

*Proof.* The link carries one fragment at a time, hence the first. While fragment k is on the link, at most
`tau` steps run: it was sent at a boundary before its transfer began, and after `d_k <= tau` further steps
workers wait for its end. So of the `H c` seconds of compute in a period, at most `min(p_k, tau c)` run during
transfer k. The rest runs in the `T - sum p_k` seconds in which the link is idle. So
`H c <= T - sum p_k + sum min(p_k, tau c)`.

**Corollary.** With `P` fragments a link carries at most `(min(T, T - H c + P tau c) - P a) / b` bytes in a
period `T`, because `sum min(p_k, tau c) <= min(sum p_k, P tau c)`. Let `cap(T)` be the largest of these over
`P`, or 0. No plan has a period shorter than the least `T >= H c` for which the capacities of all links add up
to the bytes of the model.

**Theorem 2.** If layers may be cut anywhere, some plan attains this bound, but for rounding to whole blocks.

*Proof.* Let `T` be the bound, `delta = T - H c`, and let all links end a fragment at boundary `H`, where
workers wait for `delta`. A link with `P` fragments has windows of `h_k <= tau` steps, one after another, the
last of them ending at `H`; `sum h_k = min(H, P tau)`. A fragment is sent at the beginning of its window and
applied at its end. It may take `h_k c` seconds, and the last one `h_k c + delta`. The windows hold
`min(H, P tau) c + delta - P a` seconds of bytes, which is the corollary's capacity. A window too short for
`a` holds none, and leaving it out only adds room. (``pace_sync.solver.streaming.capacity``)
"""

import math
from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingLinks:
    """Links, steps and the limit of delay.

    Attributes
    ----------
    call_s, seconds_per_byte : arrays of shape (num_links,)
        What a fragment, and a byte of it, costs each link.
    step_s : float
    period_steps, most_delay : int
        `H` and `tau`.
    most_fragments : int
        Most fragments of the model.
    """

    call_s: FloatArray
    seconds_per_byte: FloatArray
    step_s: float
    period_steps: int
    most_delay: int
    most_fragments: int

    @property
    def compute_s(self) -> float:
        """Compute time of a period."""
        return self.period_steps * self.step_s


def least_period(links: StreamingLinks, size_bytes: float) -> float:
    """Return the bound of the corollary, in seconds."""
    compute = links.compute_s
    if size_bytes <= 0 or capacity(links, compute).sum() >= size_bytes:
        return compute
    low, high = compute, 2 * compute
    while capacity(links, high).sum() < size_bytes:
        low, high = high, 2 * high
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return low
        if capacity(links, middle).sum() < size_bytes:
            low = middle
        else:
            high = middle


def capacity(links: StreamingLinks, period_s: float) -> FloatArray:
    """Return the bytes that each link carries at most in a period of this length."""
    counts = best_counts(links)
    held = np.minimum(period_s, period_s - links.compute_s + counts * links.most_delay * links.step_s)
    return np.asarray(np.max(np.maximum(held - counts * links.call_s, 0.0), axis=0) / links.seconds_per_byte)


def best_counts(links: StreamingLinks) -> FloatArray:
    """Return numbers of fragments among which each link's best one is, whatever the period; one a row.

    Capacity is concave in the number: it changes its slope once, where windows fill the period.
    """
    full = links.period_steps / links.most_delay if links.most_delay else 1.0
    counts = {1, math.floor(full), math.ceil(full)}
    return np.array([[min(max(count, 1), links.most_fragments)] for count in sorted(counts)], dtype=float)


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

    This is the plan of Theorem 2, for fragments of layers that may be cut anywhere. A link's windows fill the
    end of the period. Its bytes go to windows in proportion to their room, so that what is spare is spare
    everywhere. Of numbers of fragments that leave a tenth of every window spare, the least is taken, and
    delays are as short as that tenth allows. The period is that of ``least_period``, or longer.
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
