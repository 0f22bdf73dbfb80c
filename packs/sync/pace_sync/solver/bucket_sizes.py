"""Where a line of bytes is cut into buckets, for the broadcast shop: lot streaming with setup times.

A bucket costs the link a message and each receiver an overhead, so small ones lose time. But receivers begin
after the first bucket and end after the last, so large ones lose time too.
"""

from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace_sync.solver.broadcast import NO_CREDIT

MOST_BUCKETS = 4096
# Every number of buckets up to here is tried; beyond, each is larger than the last by a tenth.
EVERY_NUMBER = 48
_BISECTIONS = 44


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteLine:
    """Tensors one after another, with the costs of their bytes.

    Attributes
    ----------
    ends : integer array of shape (num_tensors,)
        Where each tensor ends, in bytes; rising, so no tensor is empty.
    block_bytes : integer array of shape (num_tensors,)
        A tensor is cut after whole blocks only.
    worked_s : array of shape (num_receivers, num_tensors)
        Seconds of work of each receiver on all bytes up to each tensor's end.
    message_s, seconds_per_byte
        What a bucket and each of its bytes cost the link.
    overhead_s : array of shape (num_receivers,)
        What a bucket costs each receiver beside the work on its bytes.
    lag_s : array of shape (num_receivers,)
        Seconds after the link's end when a bucket is whole at each receiver.
    credit_bytes
        Most bytes that are held at a time; `NO_CREDIT` for no limit.
    """

    ends: IntArray
    block_bytes: IntArray
    worked_s: FloatArray
    message_s: float
    seconds_per_byte: float
    overhead_s: FloatArray
    lag_s: FloatArray
    credit_bytes: int = NO_CREDIT

    def pause_s(self, cuts: IntArray) -> float:
        """Return the pause for buckets with these ends, sent in their order; infinite if one cannot be."""
        from pace_sync.solver import broadcast_kernel as kernel

        return float(
            kernel.pause_of_cuts(
                cuts,
                self.message_s,
                self.seconds_per_byte,
                self.ends,
                self.worked_s,
                self.overhead_s,
                self.lag_s,
                self.credit_bytes,
            )
        )


def cut_into(line: ByteLine, num_buckets: int, *, at_least_s: float, largest_bytes: int) -> IntArray | None:
    """Return the ends of buckets whose pause is the least of so many, or less with fewer buckets.

    Theorem. Let buffers be unlimited, and let all be finished by C. Bucket k, which ends at x, may begin at y
    only if its message and those before it, all bytes up to x, and then the work on all bytes from y on fit
    into C, for each receiver. The least such y is the best: it leaves fewer bytes to the buckets before, and
    the condition of bucket k - 1 is easier for a smaller end. So C can be reached by `num_buckets` buckets if
    and only if cutting from behind, each bucket as large as it may be, reaches the first byte. C is found by
    bisection. Exact to one part in 10^12 for buckets in the order of the line; None if `largest_bytes` allows
    no such buckets.

    O(num_buckets * receivers * log(tensors)) for each of 44 steps.
    """
    from pace_sync.solver import broadcast_kernel as kernel

    cuts = np.empty(num_buckets, dtype=np.int64)

    def cut(within_s: float) -> IntArray | None:
        used = kernel.cut_from_behind(
            within_s,
            num_buckets,
            largest_bytes,
            line.message_s,
            line.seconds_per_byte,
            line.ends,
            line.block_bytes,
            line.worked_s,
            line.overhead_s,
            line.lag_s,
            cuts,
        )
        return cuts[:used][::-1].copy() if used else None

    total = float(line.ends[-1])
    high = float(
        num_buckets * (line.message_s + np.max(line.overhead_s))
        + total * line.seconds_per_byte
        + np.max(line.worked_s[:, -1] + line.lag_s)
    )
    best = cut(high * (1 + 1e-9))
    if best is None:
        return None
    low = min(at_least_s, high)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        found = cut(middle)
        if found is None:
            low = middle
        else:
            high, best = middle, found
    return best


def best_cuts(line: ByteLine, *, at_least_s: float) -> IntArray:
    """Return the ends of buckets of the line, in its order, with the least pause found.

    With unlimited buffers each number of buckets that is tried is cut exactly (``cut_into``). With a credit,
    buckets of at most the credit, half of it, a third and so on are cut so, as are equal ones. Then single
    cuts move while that helps. A heuristic: `at_least_s`, a lower bound, says how good it is.
    """
    from pace_sync.solver import broadcast_kernel as kernel

    total = int(line.ends[-1])
    limited = line.credit_bytes < total
    shares = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if limited else (1,)
    best: IntArray | None = None
    least = np.inf
    for share in shares:
        largest = min(line.credit_bytes, total) // share
        if largest < 1:
            break
        fewest = -(-total // largest)
        if fewest > MOST_BUCKETS:
            break
        worse = 0
        for num_buckets in _numbers(fewest):
            price = num_buckets * line.message_s + total * line.seconds_per_byte
            if price >= least or worse > (6 if limited else 24):
                break
            found = [cut_into(line, num_buckets, at_least_s=at_least_s, largest_bytes=largest)]
            if limited:
                found.append(_equal_cuts(line, num_buckets))
            values = [np.inf if cuts is None else line.pause_s(cuts) for cuts in found]
            place = int(np.argmin(values))
            worse += 1
            if values[place] < least * (1 - 1e-12):
                worse = 0
                least, best = values[place], found[place]
    if best is None:
        # Too many buckets to choose sizes, or coarse blocks: as much as fits, again and again.
        best = _equal_cuts(line, -(-total // min(line.credit_bytes, total)))
    if limited and 1 < len(best) <= 400:
        kernel.improve_cuts(
            best,
            line.message_s,
            line.seconds_per_byte,
            line.ends,
            line.block_bytes,
            line.worked_s,
            line.overhead_s,
            line.lag_s,
            line.credit_bytes,
            at_least_s,
        )
    return best


def _numbers(fewest: int) -> list[int]:
    numbers = list(range(fewest, min(fewest + EVERY_NUMBER, MOST_BUCKETS + 1)))
    while numbers and numbers[-1] * 1.1 < MOST_BUCKETS:
        numbers.append(int(numbers[-1] * 1.1))
    return numbers or [fewest]


def _equal_cuts(line: ByteLine, num_buckets: int) -> IntArray:
    """Return buckets of nearly the same size, each as large as blocks and the credit allow."""
    wanted = min(-(-int(line.ends[-1]) // num_buckets), line.credit_bytes)
    return fill(line.ends, line.block_bytes, wanted)


def fill(ends: IntArray, block_bytes: IntArray, largest_bytes: int) -> IntArray:
    """Return the ends of buckets that hold as many bytes as fit into `largest_bytes`, in order.

    A block that is larger than that has a bucket of its own.
    """
    cuts: list[int] = []
    begin, total = 0, int(ends[-1])
    while begin < total:
        wanted = begin + largest_bytes
        tensor = int(np.searchsorted(ends, wanted, side="right"))
        if tensor >= len(ends):
            cuts.append(total)
            break
        first = int(ends[tensor - 1]) if tensor else 0
        block = int(block_bytes[tensor])
        cut = first + (wanted - first) // block * block
        if cut <= begin:
            cut = min(begin + block, int(ends[tensor]))
        cuts.append(cut)
        begin = cut
    return np.array(cuts, dtype=np.int64)
