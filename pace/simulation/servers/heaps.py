"""Binary heaps, compiled: of timed events, and of keys that a queue serves the smallest of."""

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled


@compiled
def precedes(time: float, code: int, other_time: float, other_code: int) -> bool:
    """Say whether one event comes before another: earlier, or at the same time and of a smaller code."""
    return time < other_time or (time == other_time and code < other_code)


@compiled
def put(times: FloatArray, codes: IntArray, size: int, time: float, code: int) -> int:
    """Put an event into the heap of `size`; return its new size."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if not precedes(time, code, times[above], codes[above]):
            break
        times[at] = times[above]
        codes[at] = codes[above]
        at = above
    times[at] = time
    codes[at] = code
    return size + 1


@compiled
def pop(times: FloatArray, codes: IntArray, size: int) -> int:
    """Remove the first event; return the heap's new size."""
    size -= 1
    time, code = times[size], codes[size]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and precedes(times[below + 1], codes[below + 1], times[below], codes[below]):
            below += 1
        if not precedes(times[below], codes[below], time, code):
            break
        times[at] = times[below]
        codes[at] = codes[below]
        at = below
    times[at] = time
    codes[at] = code
    return size


@compiled
def enqueue(queue: IntArray, size: int, key: int) -> int:
    """Put a key into a binary heap of integers; return its new size."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if queue[above] <= key:
            break
        queue[at] = queue[above]
        at = above
    queue[at] = key
    return size + 1


@compiled
def dequeue(queue: IntArray, size: int) -> int:
    """Remove the least key; return the heap's new size."""
    size -= 1
    last = queue[size]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and queue[below + 1] < queue[below]:
            below += 1
        if queue[below] >= last:
            break
        queue[at] = queue[below]
        at = below
    queue[at] = last
    return size


@compiled
def without(queue: IntArray, size: int, part: int, parts: int) -> int:
    """Remove the key of one partition, wherever it is; return the heap's new size. O(n log n)."""
    keys = queue[:size].copy()
    left = 0
    for key in keys:
        if key % parts != part:
            left = enqueue(queue, left, key)
    return left


@compiled
def led_choice(queue: IntArray, leads: IntArray, parts: int) -> int:
    """Return the queued partition that the leader handed over first, or -1 if it handed over none."""
    best = -1
    for key in queue:
        part = key % parts
        if leads[part] >= 0 and (best < 0 or leads[part] < leads[best]):
            best = part
    return best
