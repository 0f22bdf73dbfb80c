"""Assumed rates of each host's link: measured by receivers, or an oracle's for experiments."""

from dataclasses import dataclass
from typing import Literal, Protocol

from pace_fabric.documents.network import FabricNetwork

# Shorter transfers say more about round trips than about rates.
_LEAST_BYTES = 64 << 10
_SLOWER = 0.9
_MUCH_SLOWER = 0.5
_TRIED = 1.25
# How often in a row a wide link must be seen to be slow.
_DOUBTS = 2
DEFAULT_BYTES_PER_S = 1.25e8
Direction = Literal["up", "down"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTransfer:
    """An observation of a transfer, at its end or while it was under way.

    Attributes
    ----------
    size_bytes, seconds
        What arrived, and in which time, on the receiver's clock.
    waited_s
        The time on the scheduler's clock, which includes messages.
    other_up, other_down
        Bytes per second of all other transfers over the source's link up and the target's link down then.
    most
        What it was allowed to send, in bytes per second; None for no limit.
    """

    source: str
    target: str
    size_bytes: int
    seconds: float
    waited_s: float
    other_up: float = 0.0
    other_down: float = 0.0
    most: float | None = None


class NetworkState(Protocol):
    """Rates of links as they are believed to be."""

    @property
    def name(self) -> str:
        """Label of results."""

    def rates(self, host: str, now_s: float) -> tuple[float, float]:
        """Return the bytes per second up and down."""

    def observe(self, seen: SeenTransfer, now_s: float) -> None:
        """Take in what was seen of a transfer."""

    def known_s(self, host: str, direction: Direction) -> float:
        """Return when a transfer told about a link last; infinity if none needs to."""


def nominal_rates(network: FabricNetwork | None) -> dict[str, tuple[float, float]]:
    """Return what a network document says of each host at its start."""
    hosts = () if network is None else network.hosts
    return {host.name: (host.up_bytes_per_s, host.down_bytes_per_s) for host in hosts}


@dataclass(slots=True)
class _Estimate:
    rate: float
    proven_s: float = float("-inf")
    known_s: float = float("-inf")
    doubts: int = 0


class MeasuredState:
    """Estimates from what receivers see of transfers.

    A transfer that was faster than a link was believed to be raises it. One that was slower than it was
    allowed to be tells nothing if one of its links was full with others. Otherwise one of its links carries
    less than was believed: the one that was known to be much narrower than the other, or else the one whose
    rate was shown longer ago, because a link that was fast a moment ago still is. It carried no more than all
    transfers over it together. A wide link must be seen to be slow
    twice in a row. A link that carries all that was asked of it is asked for more.

    Parameters
    ----------
    network
        What links are believed to carry at first; hosts that it lacks begin with 1 Gb/s.
    """

    name = "measured"

    def __init__(self, network: FabricNetwork | None = None) -> None:
        self._nominal = nominal_rates(network)
        self._links: dict[tuple[str, Direction], _Estimate] = {}
        self._most = max((rate for both in self._nominal.values() for rate in both), default=0.0)

    def _link(self, host: str, direction: Direction) -> _Estimate:
        found = self._links.get((host, direction))
        if found is None:
            up, down = self._nominal.get(host, (DEFAULT_BYTES_PER_S, DEFAULT_BYTES_PER_S))
            found = self._links[host, direction] = _Estimate(up if direction == "up" else down)
        return found

    def rates(self, host: str, now_s: float) -> tuple[float, float]:
        """Return the present estimates."""
        del now_s
        return self._link(host, "up").rate, self._link(host, "down").rate

    def observe(self, seen: SeenTransfer, now_s: float) -> None:
        """Take in what was seen of a transfer."""
        if seen.size_bytes < _LEAST_BYTES or seen.seconds <= 0:
            return
        # A reader that was late finds much at once: only the longer time shows what no link did before.
        rate = seen.size_bytes / seen.seconds
        self._most = max(self._most, seen.size_bytes / max(seen.seconds, seen.waited_s))
        up, down = self._link(seen.source, "up"), self._link(seen.target, "down")
        loads = ((up, rate + seen.other_up), (down, rate + seen.other_down))
        allowed = min(up.rate, down.rate, *(() if seen.most is None else (seen.most,)))
        for link, load in loads:
            if load >= _SLOWER * link.rate:
                link.rate = max(link.rate, min(rate, self._most))
                link.proven_s = link.known_s = now_s
                link.doubts = 0
                if seen.most is not None and rate >= _SLOWER * seen.most:
                    # Only what was asked of it was seen: it may carry more, and the next transfers tell.
                    link.rate = max(link.rate, min(link.rate * _TRIED, self._most))
        if rate >= _SLOWER * allowed or any(load >= _SLOWER * link.rate for link, load in loads):
            return
        narrow = min(loads, key=lambda each: each[0].rate)
        blamed, load = min(loads, key=lambda each: each[0].proven_s)
        if narrow[0].rate < _MUCH_SLOWER * max(up.rate, down.rate):
            blamed, load = narrow  # the link that was known to be narrow, measured anew
        else:
            blamed.doubts += 1
            if blamed.doubts < _DOUBTS:
                return  # a process that stood still for a moment looks the same
        blamed.rate, blamed.known_s, blamed.doubts = load, now_s, 0

    def known_s(self, host: str, direction: Direction) -> float:
        """Return when a transfer told about a link last."""
        return self._link(host, direction).known_s


class OracleState:
    """Rates of a network document some time ago, for experiments; results are labeled so.

    The document's time begins with the scheduler's clock.
    """

    def __init__(self, network: FabricNetwork, *, lag_s: float = 0.0) -> None:
        self.name = f"oracle, {lag_s:g} s late"
        self._hosts = {host.name: host for host in network.hosts}
        self._lag_s = lag_s

    def rates(self, host: str, now_s: float) -> tuple[float, float]:
        """Return the document's rates, `lag_s` ago."""
        known = self._hosts.get(host)
        if known is None:
            return DEFAULT_BYTES_PER_S, DEFAULT_BYTES_PER_S
        up, down = known.up_bytes_per_s, known.down_bytes_per_s
        for change in known.changes:
            if change.at_s > now_s - self._lag_s:
                break
            up = up if change.up_bytes_per_s is None else change.up_bytes_per_s
            down = down if change.down_bytes_per_s is None else change.down_bytes_per_s
        return up, down

    def observe(self, seen: SeenTransfer, now_s: float) -> None:
        """Take no notice: an oracle knows."""

    def known_s(self, host: str, direction: Direction) -> float:
        """Return that no transfer needs to tell about a link."""
        del host, direction
        return float("inf")
