"""Measures the cost of an all-reduce in small slices, between the steps of a training job.

``allreduce_cost`` measures without a break, for as long as the precision needs. Here training must go on, so
the whole measurement takes two seconds, in slices of a few calls, and runs are shorter. The largest size is
that of which a call takes `LONGEST_CALL_S`. Beyond it only the bytes matter, and the cost continues with its
last slope. Sizes alternate, so that a change of the network affects all of them.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from pace.runtime.capture.allreduce_cost import (
    SMALLEST_BYTES,
    AllReduceMeasurement,
    Network,
    SizeMeasurement,
    measured_sizes,
    median_interval,
    time_run,
)

# What all runs together may take; barriers and what ranks tell one another come on top. The first run of
# every size is made in any case.
BUDGET_S = 1.7

# Sizes end where a call takes so long, or so many times as long as the smallest size: with less, what
# is beyond would be guessed from latencies.
LONGEST_CALL_S = 0.06
LONGEST_CALL_RATIO = 4

SECONDS_PER_RUN = 0.012
MOST_RUNS = 7
# Number of times that a size is repeated before a larger one is cut or left out because of its time.
CONFIRMING_RUNS = 2
CONFIDENCE = 0.95

# The last size is cut to what fits, but not nearer to the one before: the slope between the two counts for
# all that is larger, and the nearer they are the more it errs.
LEAST_RATIO = 2.5


class CostSampler:
    """Times all-reduces in slices; every rank must make the same calls, with nothing else in flight.

    Parameters
    ----------
    network
        The network that carries the all-reduces.
    largest_bytes
        Size of the largest group that may be sent. The measured sizes go beyond it if that is fast enough.
    slices
        Number of calls of ``advance`` over which to spread the measurement.
    """

    def __init__(self, network: Network, *, largest_bytes: int, slices: int) -> None:
        self._network = network
        self._candidates = measured_sizes(largest_bytes)
        self._slice_s = BUDGET_S / slices
        self._buffer = torch.zeros(0, dtype=torch.float32, device=network.device)
        self._calls: dict[int, int] = {}
        self._durations: dict[int, list[float]] = {}
        # Agreed by all ranks, so that all of them stop at the same call.
        self._spent_s = 0.0
        self._runs = self._all_runs()
        self.finished = False

    def advance(self) -> None:
        """Make the calls of one slice: at least one run, and more while they fit."""
        end_s = self._spent_s + self._slice_s
        while not self.finished and self._spent_s < end_s:
            self.finished = next(self._runs, None) is None

    @property
    def costs(self) -> list[tuple[int, float]]:
        """Return the bytes and seconds measured so far, the same on all ranks."""
        return [(size_bytes, float(np.median(found))) for size_bytes, found in self._durations.items()]

    def finish(self) -> AllReduceMeasurement:
        """Make the remaining calls and return the measurement."""
        while not self.finished:
            self.advance()
        self._buffer = self._buffer[:0].clone()
        sizes = []
        medians_s = never_falling([float(np.median(durations)) for durations in self._durations.values()])
        for (size_bytes, durations), median_s in zip(self._durations.items(), medians_s, strict=True):
            low, high = median_interval(durations, CONFIDENCE)
            sizes.append(
                SizeMeasurement(
                    size_bytes=size_bytes,
                    duration_s=median_s,
                    margin_s=(high - low) / 2,
                    num_calls=len(durations) * self._calls[size_bytes],
                )
            )
        return AllReduceMeasurement(
            num_workers=self._network.num_workers,
            confidence=CONFIDENCE,
            sizes=tuple(sizes),
            pair_speedup={},
        )

    def _all_runs(self) -> Iterator[int]:
        """Make one run after another; yield the size of each."""
        size_bytes: int | None = self._candidates[0]
        while size_bytes is not None:
            yield from self._first_run(size_bytes)
            for _ in range(CONFIRMING_RUNS):
                # One slow run would end the sizes, and all larger ones would be guessed from latencies.
                if self._spent_s >= BUDGET_S / 2 or not self._is_last(size_bytes):
                    break
                yield self._repeat(size_bytes)
            size_bytes = self._after(size_bytes)
        while min(map(len, self._durations.values())) < MOST_RUNS:
            for each in self._durations:
                if self._spent_s >= BUDGET_S:
                    return
                if len(self._durations[each]) < MOST_RUNS:
                    yield self._repeat(each)

    def _repeat(self, size_bytes: int) -> int:
        self._durations[size_bytes].append(self._run(size_bytes, self._calls[size_bytes]))
        return size_bytes

    def _first_run(self, size_bytes: int) -> Iterator[int]:
        """Find the number of calls of a run, and make the run."""
        self._run(size_bytes, 1)  # a warm-up, which sets up connections and memory
        yield size_bytes
        calls = 1
        while True:
            mean_s = self._run(size_bytes, calls)
            yield size_bytes
            if calls * mean_s >= SECONDS_PER_RUN:
                break
            # What passes at once after a pause makes the first calls look faster than the rest are.
            calls *= 2 if calls * mean_s >= SECONDS_PER_RUN / 4 else 4
        self._calls[size_bytes] = calls
        self._durations[size_bytes] = [mean_s]

    def _is_last(self, size_bytes: int) -> bool:
        """Return whether this size takes so long that the next candidate is cut or left out."""
        larger = next((each for each in self._candidates if each > size_bytes), None)
        return larger is not None and self._after(size_bytes) != larger

    def _after(self, size_bytes: int) -> int | None:
        """Return the size to measure after this one; None after the largest."""
        larger = next((each for each in self._candidates if each > size_bytes), None)
        if larger is None:
            return None
        measured = [(size, min(durations)) for size, durations in self._durations.items()]
        longest_s = max(LONGEST_CALL_S, LONGEST_CALL_RATIO * measured[0][1])
        if len(measured) == 1:
            return larger
        (before_bytes, before_s), (_, last_s) = measured[-2:]
        slope = (last_s - before_s) / (size_bytes - before_bytes)
        if slope > 0:
            room = int((longest_s - last_s) / slope)
            larger = min(larger, (size_bytes + room) // SMALLEST_BYTES * SMALLEST_BYTES)
        return larger if larger >= LEAST_RATIO * size_bytes else None

    def _run(self, size_bytes: int, calls: int) -> float:
        if self._buffer.numel() * 4 < size_bytes:
            self._buffer = torch.zeros(size_bytes // 4, dtype=torch.float32, device=self._network.device)
        mean_s = time_run(self._network, [self._buffer[: size_bytes // 4]], calls=calls, before=calls)
        self._spent_s += 2 * calls * mean_s
        return mean_s


def never_falling(durations_s: Sequence[float]) -> list[float]:
    """Return the isotonic regression: decreasing neighbors are replaced by their mean.

    A profile's cost does the same with SciPy, but training would have to wait for SciPy's import.
    """
    pools: list[tuple[float, int]] = []
    for duration_s in durations_s:
        mean_s, count = duration_s, 1
        while pools and pools[-1][0] > mean_s:
            before_s, num_before = pools.pop()
            mean_s = (before_s * num_before + mean_s * count) / (num_before + count)
            count += num_before
        pools.append((mean_s, count))
    return [mean_s for mean_s, count in pools for _ in range(count)]
