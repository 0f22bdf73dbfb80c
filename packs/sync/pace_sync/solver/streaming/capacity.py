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
`a` holds none, and leaving it out only adds room. (``pace_sync.solver.streaming.windows``)
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
