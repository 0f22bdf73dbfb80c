"""Measures links to servers: their rate, the round trip, and the time that each part loses.

Each part takes time on the hosts in addition to that of its bytes on the links. Large parts hide it, as the
hosts work on the next part while the links are busy. So it is measured with many parts of a few bytes at
once, for which the links are idle. A plan with small parts is limited by this time, not by the links.

``measure_links`` is for a single worker, with its own job at every server. A training job measures its links
with ``time_exchanges``, on all workers at once.
"""

import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from pace.documents.push_pull import PushPull
from pace.wire.addresses import parse_address
from pace.wire.frames import MIN_PARTITION_BYTES
from pace.wire.handshake import Greeting
from pace_servers.runtime.layout import Layout, ServedSegment, memory_of
from pace_servers.runtime.link import Countdown, PushPullCall, ServerLink
from pace_servers.runtime.options import ParameterServers

_SILENCE_S = 10.0
_SMALL_BYTES = 64
# Fewer chunks than this take as long as a few bytes, so no rate follows from the difference.
_LEAST_SHARE_BYTES = 4 * MIN_PARTITION_BYTES
NUM_PARTS = 128


class TimedExchanges(NamedTuple):
    """The durations of exchanges, in seconds, one for each repetition.

    Attributes
    ----------
    share_bytes
        The bytes of the large exchange to each server.
    small_s
        Durations with a few bytes to each server.
    large_s
        Durations with `share_bytes` to each server.
    parts_s
        Durations with ``NUM_PARTS`` parts of a few bytes to each server, at once.
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

    Afterwards the links have another layout.

    Parameters
    ----------
    size_bytes
        Size of the large tensor, over all servers. Each server gets at least four chunks.
    repeats
        Number of repetitions.
    within_s
        How long one exchange may take, in seconds.
    meet
        Called before each exchange if several workers measure together; all must make the same calls.

    Raises
    ------
    CommunicationFailed
        If a server or another worker is gone.
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
    timed([0, 1, *parts])  # warm up: allocate memory, and let connections open their windows
    return TimedExchanges(
        share_bytes=share,
        small_s=[timed([0]) for _ in range(5 * repeats)],
        large_s=[timed([1]) for _ in range(repeats)],
        parts_s=[timed(parts) for _ in range(5 * repeats)],
    )


class MeasuredExchange(NamedTuple):
    """The costs that follow from the durations, as medians.

    Attributes
    ----------
    seconds_per_byte
        Time for each byte of a large tensor, pushed and pulled, with both directions busy.
    round_trip_s
        Time from the push of a few bytes to the end of their pull.
    partition_s
        Time that each further part of any size takes on the hosts; at least 0.
    """

    seconds_per_byte: float
    round_trip_s: float
    partition_s: float


def evaluate(times: TimedExchanges, servers: int) -> MeasuredExchange:
    """Return the costs of exchanges with this number of servers."""
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
    """The measured costs, as medians over the servers.

    Attributes
    ----------
    servers
        Number of servers.
    bytes_per_s
        Rate at which one large tensor was pushed to all servers and pulled back, with both directions busy.
    round_trip_s
        Time from the push of a few bytes to the end of their pull.
    partition_s
        Time that each further part of any size takes on the hosts; at least 0.
    """

    servers: int
    bytes_per_s: float
    round_trip_s: float
    partition_s: float

    def cost(self) -> PushPull:
        """Return the cost for a document; its smallest part is what a link writes at once."""
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
        Size of the large tensor, over all servers.
    repeats
        Number of repetitions.
    within_s
        How long one exchange may take, in seconds.

    Raises
    ------
    CommunicationFailed
        If a server cannot be reached or refuses.
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
