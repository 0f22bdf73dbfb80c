"""Does every link carry what it was shaped to? Found out with real TCP transfers before measuring."""

import socket
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

from benchmarks.harness.network.hosts import Host
from benchmarks.harness.network.processes import Answer, ranks
from benchmarks.harness.prerequisites import WrongRate

_PORT = 5201
_CHUNK = bytes(256 * 1024)

# Of 1,514 bytes that a link counts for a full packet, 1,448 are payload.
PAYLOAD = 1448 / 1514
TOLERANCE = 0.1

_SECONDS, _MEGABITS = 1.5, 20.0


def measure_rates(
    on: Sequence[Host], *, seconds: float = _SECONDS, senders: Collection[int] | None = None
) -> list[float]:
    """Send from every host to the next at once; return what each got through, in 10^6 bits in a second.

    All send and receive at the same time, as in a ring all-reduce, so that a machine too slow for the
    rates is found out too. With `senders`, only those send: a link that carries data one way carries more of
    it than one that has acknowledgements of the other way to carry as well.
    """
    with ranks("rates", on, _main, on) as group:
        group.ask("connect")
        each = [(seconds if senders is None or rank in senders else 0.0,) for rank in range(len(on))]
        received = [reply / 1e6 for reply in group.ask_each("transfer", each)]
    return received[1:] + received[:1]  # what a host sent, the next one received


def verify_rates(on: Sequence[Host]) -> list[float]:
    """Measure what every host sends to the next, in 10^6 bits of payload in a second.

    Raises
    ------
    WrongRate
        When a transfer is more than a tenth off what the slower of its two links should carry.
    """
    if len(on) < 2:
        return []
    # A slow link needs longer, until single losses weigh little.
    slowest = min(host.link.rate_mbit_s for host in on)
    measured = measure_rates(on, seconds=max(_SECONDS, _MEGABITS / slowest))
    for sender, rate in enumerate(measured):
        receiver = (sender + 1) % len(on)
        expected = PAYLOAD * min(on[sender].link.rate_mbit_s, on[receiver].link.rate_mbit_s)
        emulated = on[sender].link.emulated or on[receiver].link.emulated  # loss and delay cost rate
        if rate > expected * (1 + TOLERANCE) or (rate < expected * (1 - TOLERANCE) and not emulated):
            raise WrongRate(
                f"{on[sender].name} sent {rate:.0f} Mbit/s to {on[receiver].name}, expected {expected:.0f}:"
                " a rate that is too high for this machine, or the machine is busy"
            )
    return measured


def _main(rank: int, on: Sequence[Host]) -> Answer:
    listener = socket.create_server((on[rank].address, _PORT))
    following = on[(rank + 1) % len(on)]
    connections: list[socket.socket] = []

    def answer(request: str, arguments: tuple[Any, ...]) -> Any:
        if request == "connect":
            connections.append(socket.create_connection((following.address, _PORT), timeout=10))
            connections.append(listener.accept()[0])
            return None
        (seconds,) = arguments
        outgoing, incoming = connections
        received: list[float] = []
        receiver = threading.Thread(target=lambda: received.append(_receive(incoming)))
        receiver.start()
        _send(outgoing, seconds)
        receiver.join()
        return received[0]

    return answer


def _send(connection: socket.socket, seconds: float) -> None:
    connection.settimeout(30)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        connection.sendall(_CHUNK)
    connection.shutdown(socket.SHUT_WR)


def _receive(connection: socket.socket) -> float:
    """Return bits in a second, counted once the first burst is through."""
    connection.settimeout(30)
    connection.recv(len(_CHUNK))
    counted, skipped = 0, 0.2
    started = time.monotonic()
    first = 0.0
    while data := connection.recv(len(_CHUNK)):
        now = time.monotonic()
        if now - started < skipped:
            first = now
        else:
            counted += len(data)
    return 8 * counted / (time.monotonic() - first)
