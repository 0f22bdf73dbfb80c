"""What a worker's links to its servers can do, measured: rate, round trip, and what every part loses.

One worker alone measures, over a job of its own with every server. So rates are those of the links between
this machine and the servers, not of servers that all workers use at once.
"""

import secrets
from dataclasses import dataclass

from pace.documents.push_pull import PushPull
from pace.runtime.parameter_server.exchange_cost import evaluate, time_exchanges
from pace.runtime.parameter_server.handshake import Greeting
from pace.runtime.parameter_server.link import ServerLink
from pace.runtime.parameter_server.options import ServerOptions, parse_address

_SILENCE_S = 10.0


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
