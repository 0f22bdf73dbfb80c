"""Models to the hosts that ask for them: one version for all who wait, sent on by hosts that have it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pace.runtime.event_log import log
from pace_fabric.runtime.messages import DeliveryOrder, ForgetOrder, SnapshotOrder
from pace_fabric.runtime.scheduling.admission import Admission
from pace_fabric.runtime.scheduling.known_hosts import KnownHosts, NetworkView
from pace_fabric.runtime.shards import shard_key, whole_of
from pace_fabric.solver.distribution import distribute


def spread(
    known: KnownHosts,
    view: NetworkView,
    source: str,
    hosts: Sequence[str],
    key: str,
    size_bytes: int,
    deliver: Callable[[str], None],
    on_failure: Callable[[str], None],
    *,
    keep: bool = False,
) -> None:
    """Send what `source` keeps as `key` to hosts, each of which may send it on.

    Parameters
    ----------
    deliver
        Called for every host that has it.
    on_failure
        Called for every host that does not get it.
    keep
        Whether `source` and hosts keep it until they are told to forget it; no others send it on then.
    """
    targets = [view.number[host] for host in hosts]
    relays = [host for host in known.relays(view) if not keep or host in targets]
    plan = distribute(view.capacities, view.number[source], targets, size_bytes, relays)
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
        if not uses[host] and not keep:
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


@dataclass(slots=True)
class _Want:
    """A version, how many workers wait for it to train or to read, and how many may train."""

    at_least: int
    training: int = 0
    reading: int = 0
    most: int | None = None


class ModelRequests:
    """Hosts that wait for a model.

    Parameters
    ----------
    tick_s
        The server's way up is planned once it is booked for less than this.
    admission
        How many workers may begin to train.
    """

    def __init__(self, known: KnownHosts, tick_s: float, admission: Admission) -> None:
        self._known, self._tick_s, self._admission = known, tick_s, admission
        self._wanted: dict[str, _Want] = {}
        self._asked: dict[str, dict[str, _Want]] = {}  # snapshots that were ordered: key to hosts
        self._numbers = 0
        self._next_s = 0.0
        self._newest = 0  # version that was ever planned
        self._missing: dict[str, int] = {}  # shards of a snapshot that are not taken yet
        self._serving: tuple[str, ...] = ()

    def want(self, host: str, at_least: int, *, training: int = 0, reading: int = 0) -> None:
        """Put a host on the list."""
        before = self._wanted.get(host)
        least = max(0 if before is None else before.at_least, at_least)
        self._wanted[host] = _Want(least, training, reading)

    def lose(self, host: str) -> None:
        """Take a host off the list; if it was the server, those it was asked for wait again."""
        self._wanted.pop(host, None)
        for key, hosts in list(self._asked.items()):
            hosts.pop(host, None)
            if host in self._serving:
                del self._asked[key], self._missing[key]
                for name, want in hosts.items():
                    self._again(name, key, want)

    def _again(self, host: str, key: str, want: _Want) -> None:
        self._admission.take_back(host, key)
        self._wanted[host] = want

    def plan(
        self, servers: Sequence[str], version: int, planned_version: int, waiting: Sequence[int]
    ) -> None:
        """Order a snapshot for all whose version is there, if the server's way up is nearly free.

        At most once in a tick, so that those who ask at about the same time are served together.

        Parameters
        ----------
        version
            Version of the model after all commits that were ordered.
        planned_version
            The newest that can be waited for: after a failover the model may be older than what was asked.
        waiting
            Versions that updates were computed from which wait for a plan.
        """
        self._newest = max(self._newest, planned_version)
        ready = {h: w for h, w in self._wanted.items() if self._there(w, version, planned_version)}
        if not ready or self._asked or self._known.now() < self._next_s:
            return
        self._next_s = self._known.now() + self._tick_s
        view = self._known.view()
        if max(view.busy_s(server, "up") for server in servers) >= self._tick_s:
            return
        asked: dict[str, _Want] = {}
        key = f"m/{self._numbers + 1}"
        for host, want in ready.items():
            most = self._admission.admit(
                host,
                key,
                want.training,
                version=version,
                planned_version=planned_version,
                waiting=waiting,
            )
            if most == 0 and want.training and not want.reading:
                continue
            want.most = most
            asked[host] = want
            del self._wanted[host]
        if not asked:
            return
        self._numbers += 1
        self._serving = tuple(servers)
        self._asked[key], self._missing[key] = asked, len(servers)
        for shard, server in enumerate(servers):
            self._known.tell(server, SnapshotOrder(key=shard_key(key, shard, len(servers))))

    def _there(self, want: _Want, version: int, planned_version: int) -> bool:
        """Return whether a model is new enough; a version that died with a server is not waited for."""
        had_once = want.at_least <= self._newest
        return (min(want.at_least, planned_version) if had_once else want.at_least) <= version

    def taken(self, server: str, key: str, version: int, size_bytes: int) -> bool:
        """Send a snapshot that was taken to those who wait; return whether it was for a model."""
        place = whole_of(key)
        whole, shards = (key, 1) if place is None else (place[0], place[2])
        hosts = self._asked.get(whole)
        if hosts is None:
            return False
        self._missing[whole] -= 1
        if not self._missing[whole]:
            del self._asked[whole], self._missing[whole]
        here = [host for host in hosts if host in self._known.hosts]
        newest = max((hosts[host].at_least for host in here), default=0)

        def deliver(host: str) -> None:
            # A worker may have asked for a version that a dead server had: it takes what there is.
            order = DeliveryOrder(key=key, version=max(version, newest), most=hosts[host].most, shards=shards)
            self._known.tell(host, order)

        def again(host: str) -> None:
            if host in self._known.hosts:
                log.info("pace.fabric_model_failed", host=host)
                self._again(host, whole, _Want(0, hosts[host].training, hosts[host].reading))

        spread(self._known, self._known.view(), server, here, key, size_bytes, deliver, again)
        return True
