"""The broadcast shop, compiled: times in an order, all orders, insertion, and cuts of a line of bytes."""

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compiled import compiled


@compiled
def send_in_order(
    link: FloatArray,
    work: FloatArray,
    size: IntArray,
    lag: FloatArray,
    credit: int,
    order: IntArray,
    starts: FloatArray,
    finished: FloatArray,
) -> None:
    """Write when each place of the order starts on the link and is finished by each receiver."""
    num_receivers = len(lag)
    held = np.int64(0)
    oldest = 0
    free = 0.0
    for place in range(len(order)):
        bucket = order[place]
        start = free
        while held > credit - size[bucket]:
            for receiver in range(num_receivers):
                start = max(start, finished[receiver, oldest])
            held -= size[order[oldest]]
            oldest += 1
        held += size[bucket]
        starts[place] = start
        free = start + link[bucket]
        for receiver in range(num_receivers):
            begin = free + lag[receiver]
            if place:
                begin = max(begin, finished[receiver, place - 1])
            finished[receiver, place] = begin + work[receiver, bucket]


@compiled
def pause_in_order(
    link: FloatArray, work: FloatArray, size: IntArray, lag: FloatArray, credit: int, order: IntArray
) -> float:
    """Return when the last receiver has finished the last bucket."""
    count = len(order)
    if count == 0:
        return 0.0
    starts = np.empty(count)
    finished = np.empty((len(lag), count))
    send_in_order(link, work, size, lag, credit, order, starts, finished)
    return float(np.max(finished[:, count - 1]))


@compiled
def enumerate_orders(
    link: FloatArray, work: FloatArray, size: IntArray, lag: FloatArray, credit: int, best: IntArray
) -> float:
    """Try all orders in lexicographic order; leave the first of the best, or `best` itself, in `best`."""
    count = len(best)
    order = np.arange(count)
    least = pause_in_order(link, work, size, lag, credit, best)
    while True:
        value = pause_in_order(link, work, size, lag, credit, order)
        if value < least * (1.0 - 1e-12):
            least = value
            best[:] = order
        pivot = count - 2
        while pivot >= 0 and order[pivot] > order[pivot + 1]:
            pivot -= 1
        if pivot < 0:
            return least
        successor = count - 1
        while order[successor] < order[pivot]:
            successor -= 1
        order[pivot], order[successor] = order[successor], order[pivot]
        order[pivot + 1 :] = order[pivot + 1 :][::-1].copy()


@compiled
def reinsert(
    link: FloatArray,
    work: FloatArray,
    size: IntArray,
    lag: FloatArray,
    credit: int,
    order: IntArray,
    enough: float,
) -> float:
    """Move one bucket at a time to its best place until no move helps or the pause is at most `enough`."""
    count = len(order)
    best = pause_in_order(link, work, size, lag, credit, order)
    trial = np.empty(count, dtype=np.int64)
    chosen = order.copy()
    improved = True
    while improved and best > enough:
        improved = False
        for source in range(count):
            bucket = order[source]
            found = False
            for target in range(count):
                if target == source:
                    continue
                trial[:] = order
                step = 1 if target > source else -1
                for place in range(source, target, step):
                    trial[place] = order[place + step]
                trial[target] = bucket
                value = pause_in_order(link, work, size, lag, credit, trial)
                if value < best * (1.0 - 1e-12):
                    best = value
                    chosen[:] = trial
                    found = True
            if found:
                order[:] = chosen
                improved = True
    return best


@compiled
def allowed_from(position: float, ends: IntArray, block: IntArray) -> int:
    """Return the first allowed cut at or after a position: a tensor's end, or whole blocks into it."""
    if position <= 0.0:
        return 0
    tensor = np.searchsorted(ends, position)
    if tensor >= len(ends):
        return int(ends[-1])
    first = ends[tensor - 1] if tensor else 0
    blocks = np.int64(np.ceil((position - first) / block[tensor]))
    return int(min(first + blocks * block[tensor], ends[tensor]))


@compiled
def worked_until(position: int, ends: IntArray, worked: FloatArray) -> float:
    """Return the seconds of work in the bytes before a position; `worked` holds those before each end."""
    if position <= 0:
        return 0.0
    tensor = np.searchsorted(ends, position)
    first = ends[tensor - 1] if tensor else 0
    before = worked[tensor - 1] if tensor else 0.0
    return float(before + (worked[tensor] - before) * (position - first) / (ends[tensor] - first))


@compiled
def _first_worked(needed: float, ends: IntArray, worked: FloatArray) -> float:
    """Return the first position whose bytes before it have so much work; beyond all bytes if none has."""
    if needed <= 0.0:
        return 0.0
    tensor = np.searchsorted(worked, needed)
    if tensor >= len(ends):
        return float(ends[-1] + 1.0)
    first = ends[tensor - 1] if tensor else 0
    before = worked[tensor - 1] if tensor else 0.0
    return float(first + (ends[tensor] - first) * (needed - before) / (worked[tensor] - before))


@compiled
def cut_from_behind(
    within: float,
    num_buckets: int,
    largest: int,
    message: float,
    per_byte: float,
    ends: IntArray,
    block: IntArray,
    worked: FloatArray,
    overhead: FloatArray,
    lag: FloatArray,
    cuts: IntArray,
) -> int:
    """Cut a line of bytes so that all is finished within so many seconds; return the number of buckets, or 0.

    From the last bucket back, each begins as early as it may. Writes the ends of buckets to `cuts`, last
    first.
    """
    end = ends[-1]
    for bucket in range(num_buckets, 0, -1):
        cuts[num_buckets - bucket] = end
        begin = allowed_from(float(end - largest), ends, block)
        for receiver in range(len(lag)):
            total = worked[receiver, -1]
            needed = (
                lag[receiver]
                + bucket * message
                + end * per_byte
                + (num_buckets - bucket + 1) * overhead[receiver]
                + total
                - within
            )
            begin = max(begin, allowed_from(_first_worked(needed, ends, worked[receiver]), ends, block))
        if begin >= end:
            return 0
        if begin <= 0:
            return num_buckets - bucket + 1
        end = begin
    return 0


@compiled
def pause_of_cuts(
    cuts: IntArray,
    message: float,
    per_byte: float,
    ends: IntArray,
    worked: FloatArray,
    overhead: FloatArray,
    lag: FloatArray,
    credit: int,
) -> float:
    """Return the pause if the bytes are sent in their order, cut here: ends of buckets, rising."""
    count = len(cuts)
    size = np.empty(count, dtype=np.int64)
    work = np.empty((len(lag), count))
    for bucket in range(count):
        size[bucket] = cuts[bucket] - (cuts[bucket - 1] if bucket else 0)
        if size[bucket] <= 0 or size[bucket] > credit:
            return np.inf
    for receiver in range(len(lag)):
        before = 0.0
        for bucket in range(count):
            until = worked_until(cuts[bucket], ends, worked[receiver])
            work[receiver, bucket] = overhead[receiver] + until - before
            before = until
    link = (message + size * per_byte).astype(np.float64)
    return pause_in_order(link, work, size, lag, credit, np.arange(count))


@compiled
def improve_cuts(
    cuts: IntArray,
    message: float,
    per_byte: float,
    ends: IntArray,
    block: IntArray,
    worked: FloatArray,
    overhead: FloatArray,
    lag: FloatArray,
    credit: int,
    enough: float,
) -> float:
    """Move one cut at a time, by ever smaller steps, while that shortens the pause; returns the pause."""
    best = pause_of_cuts(cuts, message, per_byte, ends, worked, overhead, lag, credit)
    step = ends[-1] / len(cuts) / 2.0
    for _ in range(12):
        for cut in range(len(cuts) - 1):
            for sign in (-1.0, 1.0):
                before = cuts[cut]
                cuts[cut] = allowed_from(before + sign * step, ends, block)
                value = pause_of_cuts(cuts, message, per_byte, ends, worked, overhead, lag, credit)
                if value < best * (1.0 - 1e-12):
                    best = value
                else:
                    cuts[cut] = before
        if best <= enough:
            break
        step /= 2.0
    return best
