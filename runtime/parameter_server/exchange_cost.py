"""What pushing and pulling costs a job, measured on its own links by all of its ranks at once."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from pace.runtime.parameter_server.layout import Layout, ServedSegment, memory_of
from pace.runtime.parameter_server.link import Countdown, PushPullCall, ServerLink

_SMALL_BYTES = 64
NUM_PARTS = 32


class ExchangeTimes(NamedTuple):
    """How long exchanges took, one number for each time that they were made.

    Attributes
    ----------
    share_bytes
        What went to each server in one piece, and again in ``NUM_PARTS`` parts.
    small_s, large_s, parts_s
        A few bytes to every server; the share in one piece; the share in parts.
    """

    share_bytes: int
    small_s: list[float]
    large_s: list[float]
    parts_s: list[float]


def time_exchanges(
    links: Sequence[ServerLink],
    *,
    size_bytes: int,
    repeats: int,
    within_s: float,
    meet: Callable[[], None] = lambda: None,
) -> ExchangeTimes:
    """Push zeros to all servers and pull them back, with nothing else under way.

    The links follow a layout of their own afterwards.

    Parameters
    ----------
    size_bytes
        Of the large tensor, over all servers.
    within_s
        How long one exchange may take.
    meet
        Called before each, where several workers measure together; they must make the same calls.

    Raises
    ------
    CommunicationFailed
        When a server or another worker is gone.
    """
    share = max(size_bytes // len(links) // NUM_PARTS // 8, 1) * 8 * NUM_PARTS
    sizes = [_SMALL_BYTES, share, *([share // NUM_PARTS] * NUM_PARTS)]
    layout = Layout(
        segments=tuple(
            ServedSegment(size_bytes=size, dtype="float32", turn=turn) for turn, size in enumerate(sizes)
        )
    )
    for link in links:
        link.announce(layout)
    memories = [[memory_of(torch.zeros(size // 4)) for size in sizes] for _ in links]
    rounds = [0] * len(sizes)

    def timed(segments: Sequence[int]) -> float:
        waiting = Countdown(len(segments) * len(links))
        for segment in segments:
            rounds[segment] += 1
        meet()
        start = time.perf_counter()
        for segment in segments:
            for link, memory in zip(links, memories, strict=True):
                link.start(
                    PushPullCall(
                        segment=segment, round=rounds[segment], memory=memory[segment], done=waiting.one
                    )
                )
        waiting.wait(within_s)
        return time.perf_counter() - start

    parts = list(range(2, len(sizes)))
    timed([0, 1, *parts])  # memory is touched, connections have opened their windows
    return ExchangeTimes(
        share_bytes=share,
        small_s=[timed([0]) for _ in range(5 * repeats)],
        large_s=[timed([1]) for _ in range(repeats)],
        parts_s=[timed(parts) for _ in range(repeats)],
    )


class MeasuredExchange(NamedTuple):
    """What follows from the times; medians.

    Attributes
    ----------
    seconds_per_byte
        Of a large tensor, pushed and pulled, both directions at once.
    round_trip_s
        From the push of a few bytes to their pull.
    partition_s
        What every part adds to the time of the same bytes in one part; never less than 0.
    """

    seconds_per_byte: float
    round_trip_s: float
    partition_s: float


def evaluate(times: ExchangeTimes, servers: int) -> MeasuredExchange:
    """Return what exchanges cost."""
    small_s = statistics.median(times.small_s)
    large_s = statistics.median(times.large_s)
    parts_s = statistics.median(times.parts_s)
    return MeasuredExchange(
        seconds_per_byte=max(large_s - small_s, 1e-9) / (times.share_bytes * servers),
        round_trip_s=small_s,
        partition_s=max(parts_s - large_s, 0.0) / (NUM_PARTS * servers),
    )
