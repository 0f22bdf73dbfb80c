"""Which hosts a scheduler knows, and the network between them as the solver sees it at a moment."""

import time
from dataclasses import dataclass
from typing import Literal

from pace_fabric.runtime.byte_store import PROBE, PROBE_BYTES
from pace_fabric.runtime.connection import FabricLink
from pace_fabric.runtime.messages import HostRegistration, Message, RateOrder, TransferOrder
from pace_fabric.runtime.scheduling.link_rates import Direction, NetworkState
from pace_fabric.runtime.scheduling.transfer_queue import QueuedTransfer, TransferQueue
from pace_fabric.solver.aggregation import fastest_hosts
from pace_fabric.solver.capacity import Capacities


@dataclass(slots=True)
class KnownHost:
    """A host that is registered."""

    link: FabricLink
    registration: HostRegistration
    part: Literal["worker", "server", "replica"]
    received_bytes: int = 0
    received_wire_bytes: int = 0


@dataclass(frozen=True, slots=True)
class NetworkView:
    """The network at a moment: hosts by number, and what transfers under way leave of their links."""

    capacities: Capacities
    names: tuple[str, ...]
    number: dict[str, int]

    def busy_s(self, host: str, direction: Literal["up", "down"]) -> float:
        """Return for how long a link is booked."""
        steps = self.capacities.steps(2 * self.number[host] + (direction == "down"))
        return steps[-1][0] if len(steps) > 1 else 0.0


class KnownHosts:
    """Hosts, their links and the transfers between them.

    Parameters
    ----------
    aggregators, most_aggregators
        Hosts that may add and send on, and how many of them at most; None for all.
    """

    def __init__(
        self,
        state: NetworkState,
        *,
        aggregators: tuple[str, ...] | None = None,
        most_aggregators: int | None = None,
    ) -> None:
        self.state = state
        self._aggregators, self._most = aggregators, most_aggregators
        self._began = time.monotonic()
        self.hosts: dict[str, KnownHost] = {}
        self.transfers = TransferQueue(state, self._start, self._pace)

    def now(self) -> float:
        """Return the scheduler's clock, in seconds since it began."""
        return time.monotonic() - self._began

    def tell(self, host: str, message: Message) -> None:
        """Send a message to a host, if it is there."""
        known = self.hosts.get(host)
        if known is not None:
            known.link.send(message)

    def holder(self, part: Literal["server", "replica"]) -> str | None:
        """Return the host that plays a part."""
        return next((name for name, host in self.hosts.items() if host.part == part), None)

    def servers(self) -> tuple[str, ...]:
        """Return the hosts that serve the model, in the order of its shards."""
        serving = [
            (host.registration.shard, name) for name, host in self.hosts.items() if host.part == "server"
        ]
        return tuple(name for _, name in sorted(serving))

    def view(self) -> NetworkView:
        """Return the network from now on, with everything booked that is planned."""
        now, names = self.now(), tuple(self.hosts)
        rates = [self.state.rates(name, now) for name in names]
        capacities = Capacities.constant([up for up, _ in rates], [down for _, down in rates])
        number = {name: place for place, name in enumerate(names)}
        self.transfers.book(capacities, number, now)
        return NetworkView(capacities, names, number)

    def relays(self, view: NetworkView) -> tuple[int, ...]:
        """Return the hosts that may add or send on, the fastest first; holders of models do neither."""
        allowed = [
            view.number[name]
            for name, host in self.hosts.items()
            if host.part == "worker" and (self._aggregators is None or name in self._aggregators)
        ]
        return fastest_hosts(view.capacities, allowed, self._most)

    def probe(self, probe_s: float) -> None:
        """Have a little sent over links that are idle and that no transfer told about for `probe_s`.

        A plan that trusts the rate of an idle link may send a whole batch over one that has become slow.
        """
        now = self.now()
        ends: list[tuple[str, Direction]] = [(n, d) for n in self.hosts for d in ("up", "down")]
        idle = [end for end in ends if self.transfers.idle(*end)]
        stale = sorted(
            (end for end in idle if self.state.known_s(*end) < now - probe_s),
            key=lambda end: self.state.known_s(*end),
        )
        if any(transfer.purpose == PROBE for transfer in self.transfers):
            return
        for host, direction in stale:
            if (host, direction) not in idle:
                continue  # has a partner already
            opposite: Direction = "down" if direction == "up" else "up"
            partners = [name for name, other in idle if other == opposite and name != host]
            if not partners:
                continue
            # A fast partner leaves no doubt whose rate was seen.
            partner = max(partners, key=lambda name: self.state.rates(name, now)[opposite == "down"])
            idle = [end for end in idle if end not in ((host, direction), (partner, opposite))]
            source, target = (host, partner) if direction == "up" else (partner, host)
            self.transfers.submit(
                source, target, PROBE, PROBE_BYTES, lambda _arrived: None, urgency=0, purpose=PROBE
            )

    def _start(self, transfer: QueuedTransfer) -> None:
        for message in transfer.prepare:
            self.tell(transfer.source, message)
        to = self.hosts.get(transfer.target)
        if to is None:
            return
        self.tell(
            transfer.source,
            TransferOrder(
                transfer=transfer.number,
                key=transfer.key,
                host=transfer.target,
                address=to.registration.address,
                port=to.registration.port,
                rate=transfer.rate,
                once=transfer.once,
            ),
        )

    def _pace(self, transfer: QueuedTransfer) -> None:
        self.tell(transfer.source, RateOrder(host=transfer.target, rate=transfer.rate))
