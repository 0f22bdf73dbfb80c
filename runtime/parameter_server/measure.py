"""What a worker's links to its servers can do, measured: rate, round trip, and what every part loses.

One worker alone measures, over a job of its own with every server. So rates are those of the links between
this machine and the servers, not of servers that all workers use at once.
"""

import secrets
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pace.documents.push_pull import PushPull
from pace.errors import CommunicationFailed
from pace.runtime.parameter_server.handshake import Greeting
from pace.runtime.parameter_server.layout import Layout, ServedSegment, memory_of
from pace.runtime.parameter_server.link import PushPullCall, ServerLink
from pace.runtime.parameter_server.options import ServerOptions, parse_address

_SILENCE_S = 10.0
_SMALL_BYTES = 64
_NUM_PARTS = 32


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
        What every part adds to the time of the same bytes in one part; never less than 0.
    """

    servers: int
    bytes_per_s: float
    round_trip_s: float
    partition_s: float

    def cost(self) -> PushPull:
        """Return the cost document's content."""
        return PushPull(
            servers=self.servers,
            worker_bytes_per_s=self.bytes_per_s,
            partition_s=self.partition_s,
            round_trip_s=self.round_trip_s,
        )


def measure_links(
    options: ServerOptions, *, size_bytes: int = 32 << 20, repeats: int = 5, within_s: float = 10.0
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
    assert options.servers != "colocated"
    share = max(size_bytes // len(options.servers) // _NUM_PARTS // 8, 1) * 8 * _NUM_PARTS
    part = share // _NUM_PARTS
    sizes = [_SMALL_BYTES, share, *([part] * _NUM_PARTS)]
    layout = Layout(
        segments=tuple(
            ServedSegment(size_bytes=size, dtype="float32", turn=turn) for turn, size in enumerate(sizes)
        )
    )
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
            link.announce(layout)
        memories = [[memory_of(torch.zeros(size // 4)) for size in sizes] for _ in links]
        rounds = [0] * len(sizes)

        def timed(segments: Sequence[int], among: Sequence[int]) -> float:
            waiting = _Countdown(len(segments) * len(among))
            for segment in segments:
                rounds[segment] += 1
            start = time.perf_counter()
            for segment in segments:
                for at in among:
                    links[at].start(
                        PushPullCall(
                            segment=segment,
                            round=rounds[segment],
                            memory=memories[at][segment],
                            done=waiting.one,
                        )
                    )
            waiting.wait(_SILENCE_S + size_bytes / 1e6)
            return time.perf_counter() - start

        everyone = range(len(links))
        parts = list(range(2, len(sizes)))
        timed([0, 1, *parts], everyone)  # memory is touched, connections have opened their windows
        small_s = statistics.median(timed([0], everyone) for _ in range(5 * repeats))
        large_s = statistics.median(timed([1], everyone) for _ in range(repeats))
        parts_s = statistics.median(timed(parts, everyone) for _ in range(repeats))
    finally:
        for link in links:
            link.finish()
        for link in links:
            link.close()
    return MeasuredLinks(
        servers=len(links),
        bytes_per_s=share * len(links) / max(large_s - small_s, 1e-9),
        round_trip_s=small_s,
        partition_s=max(parts_s - large_s, 0.0) / (_NUM_PARTS * len(links)),
    )


class _Countdown:
    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._error: BaseException | None = None

    def one(self, error: BaseException | None) -> None:
        with self._lock:
            self._count -= 1
            self._error = self._error or error
            if self._count <= 0 or self._error is not None:
                self._over.set()

    def wait(self, timeout_s: float) -> None:
        if not self._over.wait(timeout_s):
            raise CommunicationFailed(f"nothing came back within {timeout_s:g} s")
        if self._error is not None:
            raise self._error
