"""Delay of an urgent chunk behind bulk data on one connection.

    python -m benchmarks urgent_chunk [--rate-mbit-s 200] [--times 30] [--json OUT.json]

A worker and a server run on two hosts of the testbed. The worker pushes parts of 1 MiB. While some are under
way, it pushes one more urgent chunk, and the time until its sum is back is measured. For comparison, the same
is measured with the kernel's default, which has no limit on a connection's unsent bytes.
"""

import statistics
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.harness.conditions import study_parser, write_json
from benchmarks.harness.network.hosts import Host, Link, hosts
from benchmarks.harness.network.processes import Answer, ranks
from benchmarks.harness.prerequisites import require_network, require_packages

_PORT = 19200
_TOKEN = "urgent"
_BULK_PARTS = 8
_BULK_BYTES = 1 << 20
_URGENT_BYTES = 32 << 10
_WITHIN_S = 60.0
_NO_LIMIT = (1 << 31) - 1


def _serve(rank: int, on: Sequence[Host]) -> Answer:
    from pace_servers.runtime.server import Server

    server = Server(on[rank].address, _PORT, token=_TOKEN)
    return lambda _request, _arguments: server.port


def _work(_rank: int, servers: Sequence[Host]) -> Answer:
    return lambda _request, arguments: _time_urgent(servers[0].address, *arguments)


def _time_urgent(address: str, times: int, notsent_bytes: int) -> list[float]:
    """Return how long the urgent chunk was away, each time."""
    from pace.wire.addresses import ServerAddress
    from pace.wire.handshake import Greeting
    from pace_servers.runtime.layout import Layout, ServedSegment
    from pace_servers.runtime.link import Countdown, PushPullCall, ServerLink

    link = ServerLink(
        ServerAddress(host=address, port=_PORT, name="the server"),
        Greeting(job=f"urgent-{notsent_bytes}", rank=0, size=1, silence_s=30.0),
        token=_TOKEN,
        on_failure=lambda reason: print(reason, file=sys.stderr),
        within_s=10.0,
        notsent_bytes=notsent_bytes,
    )
    if notsent_bytes == _NO_LIMIT:
        link._stream.expect_rate = _ignored  # type: ignore[method-assign]  # nor by the rate
    sizes = [_URGENT_BYTES] + [_BULK_BYTES] * _BULK_PARTS
    link.announce(
        Layout(
            segments=tuple(
                ServedSegment(size_bytes=size, dtype="float32", turn=turn) for turn, size in enumerate(sizes)
            )
        )
    )
    memories = [memoryview(bytearray(size)) for size in sizes]
    found = []
    for round_ in range(1, times + 3):
        bulk, urgent = Countdown(_BULK_PARTS), Countdown(1)
        for segment in range(1, len(sizes)):
            call = PushPullCall(segment=segment, round=round_, memory=memories[segment], done=bulk.one)
            link.start(call)
        # Well within the bulk, whatever the rate: a part of it is back.
        while all(link.is_under_way(segment) for segment in range(1, len(sizes))):
            threading.Event().wait(1e-3)
        start_s = time.perf_counter()
        link.start(PushPullCall(segment=0, round=round_, memory=memories[0], done=urgent.one))
        urgent.wait(_WITHIN_S)
        found.append(time.perf_counter() - start_s)
        bulk.wait(_WITHIN_S)
    link.finish()
    link.close()
    return found[2:]  # the connection has opened its window, and knows its rate


def _ignored(bytes_per_s: float) -> None:
    """Change nothing."""


def measure(rate_mbit_s: float, times: int) -> dict[str, Any]:
    """Measure both; JSON-ready."""
    from pace.wire.streams import NOTSENT_BYTES

    with (
        hosts([Link(rate_mbit_s=rate_mbit_s)] * 2) as on,
        ranks("server", on[1:], _serve, on[1:]) as server,
        ranks("worker", on[:1], _work, on[1:]) as worker,
        server.awake(),
    ):
        found = {
            name: worker.ask("time", times, limit, timeout_s=_WITHIN_S * 5)[0]
            for name, limit in (("late choice", NOTSENT_BYTES), ("kernel's default", _NO_LIMIT))
        }
    return {
        "rate_mbit_s": rate_mbit_s,
        "urgent_bytes": _URGENT_BYTES,
        "part_bytes": _BULK_BYTES,
        "seconds": found,
    }


def main() -> int:
    """Print medians and the worst, and write JSON if asked to."""
    parser = study_parser(__doc__, writes_json=True)
    parser.add_number("--rate-mbit-s", 200.0, "bandwidth of every link in Mbit/s")
    parser.add_number("--times", 30, "number of measured chunks")
    given = parser.parse_args()
    require_packages("torch")
    require_network()
    import torch

    torch.set_num_threads(1)
    record = measure(given.rate_mbit_s, given.times)
    for name, seconds in record["seconds"].items():
        print(
            f"{name:18} median {statistics.median(seconds) * 1e3:6.1f} ms, worst {max(seconds) * 1e3:6.1f} ms"
            f" of {len(seconds)}"
        )
    write_json(given.json, record)
    return 0
