"""What each host's link is taken to carry: measured by receivers, or an oracle's for experiments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pace.documents.fabric.network import FabricNetwork

# Shorter transfers say more about round trips than about rates.
_LEAST_BYTES = 64 << 10
_PROOF_S = 10.0
_SLOWER = 0.9
DEFAULT_BYTES_PER_S = 1.25e8


class NetworkState(Protocol):
    """Rates of links as they are believed to be."""

    @property
    def name(self) -> str:
        """How results are labeled."""

    def rates(self, host: str, now_s: float) -> tuple[float, float]:
        """Return the bytes per second up and down."""

    def observe(self, source: str, target: str, size_bytes: int, seconds: float, now_s: float) -> None:
        """Take in a transfer that no pacing held back."""


def nominal_rates(network: FabricNetwork | None) -> dict[str, tuple[float, float]]:
    """Return what a network document says of each host at its start."""
    hosts = () if network is None else network.hosts
    return {host.name: (host.up_bytes_per_s, host.down_bytes_per_s) for host in hosts}


@dataclass(slots=True)
class _Estimate:
    rate: float
    proven_s: float = float("-inf")


class MeasuredState:
    """Estimates from transfers that arrived.

    A transfer that was faster than its links were believed to be raises both. A slower one lowers the link
    whose rate was not shown by another transfer lately; of two such, the one that was shown longer ago.

    Parameters
    ----------
    network
        What links are believed to carry at first; hosts that it lacks begin with 1 Gb/s.
    """

    name = "measured"

    def __init__(self, network: FabricNetwork | None = None) -> None:
        self._nominal = nominal_rates(network)
        self._links: dict[tuple[str, str], _Estimate] = {}

    def _link(self, host: str, direction: str) -> _Estimate:
        found = self._links.get((host, direction))
        if found is None:
            up, down = self._nominal.get(host, (DEFAULT_BYTES_PER_S, DEFAULT_BYTES_PER_S))
            found = self._links[host, direction] = _Estimate(up if direction == "up" else down)
        return found

    def rates(self, host: str, now_s: float) -> tuple[float, float]:
        """Return the present estimates."""
        del now_s
        return self._link(host, "up").rate, self._link(host, "down").rate

    def observe(self, source: str, target: str, size_bytes: int, seconds: float, now_s: float) -> None:
        """Take in a transfer that no pacing held back."""
        if size_bytes < _LEAST_BYTES or seconds <= 0:
            return
        rate = size_bytes / seconds
        links: Sequence[_Estimate] = (self._link(source, "up"), self._link(target, "down"))
        believed = min(link.rate for link in links)
        for link in links:
            if rate >= _SLOWER * link.rate:
                link.rate, link.proven_s = max(link.rate, rate), now_s
        if rate < _SLOWER * believed:
            blamed = min(links, key=lambda link: link.proven_s)
            blamed.rate = (blamed.rate + rate) / 2
            blamed.proven_s = max(blamed.proven_s, now_s - _PROOF_S)


class OracleState:
    """What a network document says, some time ago: for experiments, and labeled so.

    Parameters
    ----------
    began_s
        When the document's time began, on the scheduler's clock.
    """

    def __init__(self, network: FabricNetwork, *, lag_s: float = 0.0, began_s: float = 0.0) -> None:
        self.name = f"oracle, {lag_s:g} s late"
        self._hosts = {host.name: host for host in network.hosts}
        self._lag_s, self._began_s = lag_s, began_s

    def rates(self, host: str, now_s: float) -> tuple[float, float]:
        """Return the document's rates, `lag_s` ago."""
        known = self._hosts.get(host)
        if known is None:
            return DEFAULT_BYTES_PER_S, DEFAULT_BYTES_PER_S
        up, down = known.up_bytes_per_s, known.down_bytes_per_s
        for change in known.changes:
            if change.at_s > now_s - self._lag_s - self._began_s:
                break
            up = up if change.up_bytes_per_s is None else change.up_bytes_per_s
            down = down if change.down_bytes_per_s is None else change.down_bytes_per_s
        return up, down

    def observe(self, source: str, target: str, size_bytes: int, seconds: float, now_s: float) -> None:
        """Take no notice: an oracle knows."""
