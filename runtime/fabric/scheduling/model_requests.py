"""Models to the hosts that ask for them: one version for all who wait, sent on by hosts that have it."""

from collections.abc import Callable, Sequence

from pace.runtime.event_log import log
from pace.runtime.fabric.messages import DeliveryOrder, ForgetOrder, SnapshotOrder
from pace.runtime.fabric.scheduling.known_hosts import KnownHosts, NetworkView
from pace.solver.fabric.distribution import distribute


def spread(
    known: KnownHosts,
    view: NetworkView,
    source: str,
    hosts: Sequence[str],
    key: str,
    size_bytes: int,
    deliver: Callable[[str], None],
    on_failure: Callable[[str], None],
) -> None:
    """Send what `source` keeps as `key` to hosts, each of which may send it on.

    Parameters
    ----------
    deliver
        Called for every host that has it.
    on_failure
        Called for every host that does not get it.
    """
    plan = distribute(
        view.capacities,
        view.number[source],
        [view.number[host] for host in hosts],
        size_bytes,
        known.relays(view),
    )
    if plan is None:
        for host in hosts:
            on_failure(host)
        return
    uses = {source: 1}
    for hop in plan.hops:
        for end in (hop.source, hop.target):
            uses[view.names[end]] = uses.get(view.names[end], 0) + 1

    def used(host: str) -> None:
        uses[host] -= 1
        if not uses[host]:
            known.tell(host, ForgetOrder(keys=(key,)))

    def settle(source: str, target: str, arrived: bool) -> None:
        if arrived and target in hosts:
            deliver(target)
        elif not arrived and target in hosts:
            on_failure(target)
        if arrived:
            used(target)
        used(source)

    if source in hosts:
        deliver(source)
    numbers: list[int] = []
    now = known.now()
    for hop in plan.hops:
        ends = view.names[hop.source], view.names[hop.target]

        def ended(arrived: bool, ends: tuple[str, str] = ends) -> None:
            settle(*ends, arrived)

        numbers.append(
            known.transfers.submit(
                *ends,
                key,
                size_bytes,
                ended,
                planned_s=now + hop.reservation.end_s,
                after=tuple(numbers[earlier] for earlier in hop.after),
                purpose="model",
            )
        )
    used(source)


class ModelRequests:
    """Hosts that wait for a model.

    Parameters
    ----------
    tick_s
        The server's way up is planned once it is booked for less than this.
    """

    def __init__(self, known: KnownHosts, tick_s: float) -> None:
        self._known, self._tick_s = known, tick_s
        self._wanted: dict[str, int] = {}
        self._asked: dict[str, dict[str, int]] = {}  # snapshots that were ordered: key to hosts
        self._numbers = 0

    def want(self, host: str, at_least: int) -> None:
        """Put a host on the list."""
        self._wanted[host] = max(self._wanted.get(host, 0), at_least)

    def lose(self, host: str) -> None:
        """Take a host off the list; if it was the server, those it was asked for wait again."""
        self._wanted.pop(host, None)
        for key, hosts in list(self._asked.items()):
            hosts.pop(host, None)
            if self._known.holder("server") is None:
                del self._asked[key]
                self._wanted.update(hosts)

    def plan(self, server: str, version: int, planned_version: int) -> None:
        """Order a snapshot for all whose version is there, if the server's way up is nearly free.

        Parameters
        ----------
        version
            Of the model once all commits that were ordered are applied.
        planned_version
            The newest that can be waited for: after a failover the model may be older than what was asked.
        """
        ready = {h: v for h, v in self._wanted.items() if min(v, planned_version) <= version}
        if not ready or self._asked:
            return
        if self._known.view().busy_s(server, "up") >= self._tick_s:
            return
        self._numbers += 1
        key = f"m/{self._numbers}"
        for host in ready:
            del self._wanted[host]
        self._asked[key] = ready
        self._known.tell(server, SnapshotOrder(key=key))

    def taken(self, server: str, key: str, version: int, size_bytes: int) -> bool:
        """Send a snapshot that was taken to those who wait; return whether it was for a model."""
        hosts = self._asked.pop(key, None)
        if hosts is None:
            return False
        here = [host for host in hosts if host in self._known.hosts]
        most = max((hosts[host] for host in here), default=0)

        def deliver(host: str) -> None:
            # A worker may have asked for a version that a dead server had: it takes what there is.
            self._known.tell(host, DeliveryOrder(key=key, version=max(version, most)))

        def again(host: str) -> None:
            if host in self._known.hosts:
                log.info("pace.fabric_model_failed", host=host)
                self.want(host, 0)

        spread(self._known, self._known.view(), server, here, key, size_bytes, deliver, again)
        return True
