"""Binary heaps, compiled: of timed events, and of keys that a queue serves the smallest of."""

from pace.solver.arrays import IntArray
from pace.solver.compiled import compiled_in_place
from pace.solver.kernels.jackson import drop_first, push
from pace_servers.simulation.state import EventHeap, KeyHeaps

# Kinds of events; of those at the same time, the first kind goes first.
OP_ENDS, ARRIVES, CREDIT = 0, 1, 2


@compiled_in_place
def precedes(time: float, code: int, other_time: float, other_code: int) -> bool:
    """Return whether one event comes before another: earlier, or at the same time and of a smaller code."""
    return time < other_time or (time == other_time and code < other_code)


@compiled_in_place
def is_due(events: EventHeap, now: float) -> bool:
    """Return whether the first event is due by `now`."""
    return bool(events.size[0] > 0 and events.times[0] <= now)


@compiled_in_place
def put_event(events: EventHeap, time: float, kind: int, worker: int, number: int) -> None:
    """Put an event into the heap."""
    times, codes = events.times, events.codes
    code = (kind * events.workers + worker) * events.span + number
    at = events.size[0]
    events.size[0] += 1
    while at > 0:
        above = (at - 1) >> 1
        if not precedes(time, code, times[above], codes[above]):
            break
        times[at] = times[above]
        codes[at] = codes[above]
        at = above
    times[at] = time
    codes[at] = code


@compiled_in_place
def drop_event(events: EventHeap) -> tuple[int, int, int]:
    """Remove the first event; return its kind, worker and number."""
    times, codes = events.times, events.codes
    first = codes[0]
    size = events.size[0] - 1
    events.size[0] = size
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
    source = first // events.span
    return source // events.workers, source % events.workers, first % events.span


@compiled_in_place
def enqueue(heaps: KeyHeaps, connection: int, key: int) -> None:
    """Put a key into a connection's heap."""
    push(heaps.keys[connection], heaps.size[connection], key)
    heaps.size[connection] += 1
    heaps.total[0] += 1


@compiled_in_place
def dequeue(heaps: KeyHeaps, connection: int) -> None:
    """Remove the least key of a connection's heap."""
    drop_first(heaps.keys[connection], heaps.size[connection])
    heaps.size[connection] -= 1
    heaps.total[0] -= 1


@compiled_in_place
def without(heaps: KeyHeaps, connection: int, part: int, parts: int) -> None:
    """Remove the key of one partition, wherever it is. O(n log n)."""
    queue, size = heaps.keys[connection], heaps.size[connection]
    heaps.total[0] -= size
    heaps.size[connection] = 0
    for at in range(size):  # what is put back never reaches the places not read yet
        if queue[at] % parts != part:
            enqueue(heaps, connection, queue[at])


@compiled_in_place
def led_choice(heaps: KeyHeaps, connection: int, leads: IntArray, parts: int) -> int:
    """Return the queued partition that the leader handed over first, or -1 if it handed over none."""
    best = -1
    for key in heaps.keys[connection, : heaps.size[connection]]:
        part = key % parts
        if leads[part] >= 0 and (best < 0 or leads[part] < leads[best]):
            best = part
    return best
