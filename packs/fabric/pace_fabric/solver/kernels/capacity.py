"""Residual capacity of links as step functions, compiled.

Link ``2 h`` is host h's way up, link ``2 h + 1`` its way down. Row l of `times` holds when the steps of
link l
begin, row l of `rates` the bytes a second that are left from then on; `counts[l]` steps are in use, and the
first begins at time 0.
"""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled

# A rest of a rate or of a size below this share is rounding.
ROUNDING = 1e-9
FULL = -1.0


@compiled
def step_at(times: FloatArray, counts: IntArray, link: int, at: float) -> int:
    """Return the step of `link` that holds at time `at`."""
    low = 0
    high = counts[link]
    while high - low > 1:
        middle = (low + high) >> 1
        if times[link, middle] <= at:
            low = middle
        else:
            high = middle
    return low


@compiled
def rates_at(times: FloatArray, rates: FloatArray, counts: IntArray, at: float, found: FloatArray) -> None:
    """Write the rate of each link at time `at` to `found`."""
    for link in range(len(counts)):
        found[link] = rates[link, step_at(times, counts, link, at)]


@compiled
def finish(
    times: FloatArray,
    rates: FloatArray,
    counts: IntArray,
    source: int,
    target: int,
    size: float,
    start: float,
) -> float:
    """Return when `size` bytes arrive that may leave from `start` on; infinity if they never do."""
    if size <= 0.0 or source == target:
        return start
    up = 2 * source
    down = 2 * target + 1
    i = step_at(times, counts, up, start)
    j = step_at(times, counts, down, start)
    now = start
    left = size
    while True:
        end = np.inf
        if i + 1 < counts[up]:
            end = times[up, i + 1]
        if j + 1 < counts[down] and times[down, j + 1] < end:
            end = times[down, j + 1]
        rate = min(rates[up, i], rates[down, j])
        if rate > 0.0:
            room = rate * (end - now)
            if left <= room * (1.0 + 1e-12):
                arrival: float = min(now + left / rate, end)
                return arrival
            left -= room
        elif end == np.inf:
            return np.inf
        now = end
        if i + 1 < counts[up] and times[up, i + 1] <= now:
            i += 1
        if j + 1 < counts[down] and times[down, j + 1] <= now:
            j += 1


@compiled
def cut(times: FloatArray, rates: FloatArray, counts: IntArray, link: int, at: float) -> int:
    """Make a step of `link` begin at `at`; return which."""
    step = step_at(times, counts, link, at)
    if times[link, step] == at:
        return step
    for k in range(counts[link], step + 1, -1):
        times[link, k] = times[link, k - 1]
        rates[link, k] = rates[link, k - 1]
    times[link, step + 1] = at
    rates[link, step + 1] = rates[link, step]
    counts[link] += 1
    return step + 1


@compiled
def take(
    times: FloatArray, rates: FloatArray, counts: IntArray, link: int, pieces: FloatArray, num_pieces: int
) -> None:
    """Take the pieces (start, end, rate) from `link`, and join neighbors that became equal."""
    first = 0
    for piece in range(num_pieces):
        begin = cut(times, rates, counts, link, pieces[piece, 0])
        end = cut(times, rates, counts, link, pieces[piece, 1])
        if piece == 0:
            first = begin
        for step in range(begin, end):
            rest = rates[link, step] - pieces[piece, 2]
            rates[link, step] = 0.0 if rest <= ROUNDING * rates[link, step] else rest
    kept = max(first - 1, 0)
    for step in range(kept + 1, counts[link]):
        if rates[link, step] != rates[link, kept]:
            kept += 1
            times[link, kept] = times[link, step]
            rates[link, kept] = rates[link, step]
    counts[link] = kept + 1


@compiled
def reserve(
    times: FloatArray,
    rates: FloatArray,
    counts: IntArray,
    pieces: FloatArray,
    source: int,
    target: int,
    size: float,
    start: float,
) -> tuple[float, int]:
    """Book a transfer as early as possible; write its pieces (start, end, rate).

    Returns when it ends and the number of pieces; (FULL, 0) if an array has no room, and then nothing is
    booked. What never ends is not booked either.
    """
    if size <= 0.0 or source == target:
        return start, 0
    up = 2 * source
    down = 2 * target + 1
    i = step_at(times, counts, up, start)
    j = step_at(times, counts, down, start)
    now = start
    left = size
    num = 0
    while True:
        end = np.inf
        if i + 1 < counts[up]:
            end = times[up, i + 1]
        if j + 1 < counts[down] and times[down, j + 1] < end:
            end = times[down, j + 1]
        rate = min(rates[up, i], rates[down, j])
        done = False
        if rate > 0.0:
            room = rate * (end - now)
            if left <= room * (1.0 + 1e-12):
                end = min(now + left / rate, end)
                done = True
            if num > 0 and pieces[num - 1, 1] == now and pieces[num - 1, 2] == rate:
                pieces[num - 1, 1] = end
            else:
                if num == len(pieces):
                    return FULL, 0
                pieces[num, 0] = now
                pieces[num, 1] = end
                pieces[num, 2] = rate
                num += 1
            if done:
                break
            left -= room
        elif end == np.inf:
            return np.inf, 0
        now = end
        if i + 1 < counts[up] and times[up, i + 1] <= now:
            i += 1
        if j + 1 < counts[down] and times[down, j + 1] <= now:
            j += 1
    width = times.shape[1]
    if counts[up] + 2 * num > width or counts[down] + 2 * num > width:
        return FULL, 0
    take(times, rates, counts, up, pieces, num)
    take(times, rates, counts, down, pieces, num)
    return pieces[num - 1, 1], num


@compiled
def copy_into(
    times: FloatArray,
    rates: FloatArray,
    counts: IntArray,
    to_times: FloatArray,
    to_rates: FloatArray,
    to_counts: IntArray,
) -> None:
    """Copy the steps in use of every link."""
    for link in range(len(counts)):
        for step in range(counts[link]):
            to_times[link, step] = times[link, step]
            to_rates[link, step] = rates[link, step]
        to_counts[link] = counts[link]


@compiled
def first_free(times: FloatArray, rates: FloatArray, counts: IntArray, link: int) -> float:
    """Return when `link` first has anything left."""
    for step in range(counts[link]):
        if rates[link, step] > 0.0:
            return float(times[link, step])
    return np.inf


@compiled
def through(
    times: FloatArray, rates: FloatArray, counts: IntArray, link: int, size: float
) -> tuple[float, float]:
    """Return when `link` first has anything left, and when it alone could have carried `size` bytes."""
    begin = np.inf
    left = size
    for step in range(counts[link]):
        rate = rates[link, step]
        if rate > 0.0:
            begin = min(begin, times[link, step])
            end = times[link, step + 1] if step + 1 < counts[link] else np.inf
            room = rate * (end - times[link, step])
            if left <= room:
                return begin, times[link, step] + left / rate
            left -= room
    return begin, np.inf
