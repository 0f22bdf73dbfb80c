"""The all-reduces that a trace recorded: what they moved, and how long they took once all had come."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from pace.formats.kineto_trace import KinetoTrace

_GLOO = "gloo:all_reduce"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One all-reduce as one rank saw it; waiting for slower peers is part of the duration."""

    start_s: float
    duration_s: float
    size_bytes: int | None
    workers: int | None
    record: int | None = None
    size_is_recorded: bool = True


def recorded_calls(trace: KinetoTrace) -> list[RecordedCall]:
    """Return the all-reduces of a trace in the order in which they started.

    NCCL's kernels where there are any, else the annotations that Gloo's threads write.
    """
    kernels = [
        RecordedCall(
            start_s=work.start_s,
            duration_s=work.duration_s,
            size_bytes=work.collective.size_bytes,
            workers=work.collective.workers,
        )
        for work in trace.work
        if work.collective is not None and work.collective.name.startswith(("allreduce", "all_reduce"))
    ]
    annotations = [
        RecordedCall(
            start_s=note.start_s,
            duration_s=note.end_s - note.start_s,
            size_bytes=note.size_bytes,
            workers=trace.workers,
            record=note.record,
        )
        for note in trace.annotations
        if note.name == _GLOO
    ]
    return sorted(kernels or annotations, key=attrgetter("start_s"))


def cost_samples(ranks: Sequence[Sequence[RecordedCall]]) -> tuple[tuple[float, float], ...]:
    """Return one (bytes, seconds) sample for each size.

    With several ranks, a call's duration is the shortest of any rank's: the last to come waits for
    nobody. The sample is the median over a size's calls. With one rank, waiting cannot be told from
    sending, and the sample is the shortest of a size's calls.
    """
    by_size: defaultdict[int, list[float]] = defaultdict(list)
    counts = {len(calls) for calls in ranks}
    together = len(ranks) > 1 and len(counts) == 1
    if together:
        for parts in zip(*ranks, strict=True):
            sizes = {part.size_bytes for part in parts}
            size = sizes.pop()
            if size and not sizes:
                by_size[size].append(min(part.duration_s for part in parts))
    if not by_size:
        together = False
        for calls in ranks:
            for call in calls:
                if call.size_bytes:
                    by_size[call.size_bytes].append(call.duration_s)
    middle = statistics.median if together else min
    return tuple((float(size), float(middle(by_size[size]))) for size in sorted(by_size))
