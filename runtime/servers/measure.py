"""What links to servers can do, measured: rate, round trip, and what every part loses.

A part loses what the hosts need for it besides its bytes. Parts large enough to keep the links busy hide
that: the hosts work on the next one meanwhile. So it is timed with many parts of a few bytes at once, which
leave the links nothing to do. A plan of small parts meets that limit before it meets the links'.

``measure_links`` is for one worker alone, over a job of its own with every server; a job that trains measures
its own links with ``time_exchanges``, all of its workers at once.
"""

import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from pace.documents.push_pull import PushPull
from pace.runtime.options import ParameterServers
from pace.runtime.servers.layout import Layout, ServedSegment, memory_of
from pace.runtime.servers.link import Countdown, PushPullCall, ServerLink
from pace.wire.addresses import parse_address
from pace.wire.frames import MIN_PARTITION_BYTES
from pace.wire.handshake import Greeting

_SILENCE_S = 10.0
_SMALL_BYTES = 64
# The time of less than a few chunks is that of a few bytes, and their difference is no rate.
_LEAST_SHARE_BYTES = 4 * MIN_PARTITION_BYTES
NUM_PARTS = 128


class TimedExchanges(NamedTuple):
    """How long exchanges took, one number for each time that they were made.

    Attributes
    ----------
    share_bytes
        What went to each server in one piece.
    small_s, large_s, parts_s
        A few bytes to every server; the share in one piece; ``NUM_PARTS`` times a few bytes at once.
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
) -> TimedExchanges:
    """Push zeros to all servers and pull them back, with nothing else in flight.

    The links follow a layout of their own afterwards.

    Parameters
    ----------
    size_bytes
        Of the large tensor, over all servers; each gets at least four chunks.
    within_s
        How long one exchange may take.
    meet
        Called before each, where several workers measure together; they must make the same calls.

    Raises
    ------
    CommunicationFailed
        When a server or another worker is gone.
    """
    share = max(size_bytes // len(links) // 8 * 8, _LEAST_SHARE_BYTES)
    sizes = [_SMALL_BYTES, share, *([_SMALL_BYTES] * NUM_PARTS)]
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
    return TimedExchanges(
        share_bytes=share,
        small_s=[timed([0]) for _ in range(5 * repeats)],
        large_s=[timed([1]) for _ in range(repeats)],
        parts_s=[timed(parts) for _ in range(5 * repeats)],
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
        What a further part takes on the hosts, whatever its size; never less than 0.
    """

    seconds_per_byte: float
    round_trip_s: float
    partition_s: float


def evaluate(times: TimedExchanges, servers: int) -> MeasuredExchange:
    """Return what exchanges cost."""
    small_s = statistics.median(times.small_s)
    large_s = statistics.median(times.large_s)
    parts_s = statistics.median(times.parts_s)
    return MeasuredExchange(
        seconds_per_byte=max(large_s - small_s, 1e-9) / (times.share_bytes * servers),
        round_trip_s=small_s,
        partition_s=max(parts_s - small_s, 0.0) / ((NUM_PARTS - 1) * servers),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLinks:
    """What was measured, medians over the servers.

    Attributes
    ----------
    bytes_per_s
        At which rate one large tensor went to all servers and came back, both directions at once.
    round_trip_s
        From the push of a few bytes to their pull.
    partition_s
        What a further part takes on the hosts, whatever its size; never less than 0.
    """

    servers: int
    bytes_per_s: float
    round_trip_s: float
    partition_s: float

    def cost(self) -> PushPull:
        """Return the cost document's content; no part is smaller than what a link writes at once."""
        return PushPull(
            servers=self.servers,
            worker_bytes_per_s=self.bytes_per_s,
            partition_s=self.partition_s,
            round_trip_s=self.round_trip_s,
            min_partition_bytes=MIN_PARTITION_BYTES,
        )


def measure_links(
    options: ParameterServers, *, size_bytes: int = 32 << 20, repeats: int = 5, within_s: float = 10.0
) -> MeasuredLinks:
    """Push zeros to servers and pull them back; servers must expect jobs of any size, or of one worker.

    Parameters
    ----------
    size_bytes
        Of the large tensor, over all servers.

    Raises
    ------
    CommunicationFailed
        When a server cannot be reached or refuses.
    """
    assert options.servers is not None
    assert not isinstance(options.servers, str)
    greeting = Greeting(job=f"measure-{secrets.token_hex(8)}", rank=0, size=1, silence_s=_SILENCE_S)
    links: list[ServerLink] = []
    try:
        for number, place in enumerate(options.servers):
            link = ServerLink(
                parse_address(place, f"server {number} ({place})"),
                greeting,
                token=options.token,
                on_failure=lambda _reason: None,
                within_s=within_s,
                ssl_context=options.ssl_context,
            )
            links.append(link)
        times = time_exchanges(
            links, size_bytes=size_bytes, repeats=repeats, within_s=_SILENCE_S + size_bytes / 1e6
        )
    finally:
        for link in links:
            link.finish()
        for link in links:
            link.close()
    found = evaluate(times, len(links))
    return MeasuredLinks(
        servers=len(links),
        bytes_per_s=1 / found.seconds_per_byte,
        round_trip_s=found.round_trip_s,
        partition_s=found.partition_s,
    )
