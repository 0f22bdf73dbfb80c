"""Weighted means of a fixed number of members, and the transfers of one mean.

Contributions go to one host, are added on the way, and go from there to all.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pace_fabric.runtime.formats.number_formats import encoded_bytes
from pace_fabric.runtime.formats.update_forms import mean_form
from pace_fabric.runtime.messages import (
    AdditionOrder,
    DeliveryOrder,
    ForgetOrder,
    ReductionNotice,
    RefusalOrder,
)
from pace_fabric.runtime.scheduling.commit_groups import FabricUpdate, submit_hops, towards, updates_of
from pace_fabric.runtime.scheduling.known_hosts import KnownHosts
from pace_fabric.runtime.scheduling.model_requests import spread
from pace_fabric.solver.aggregation import AggregateSize
from pace_fabric.solver.ordering import order_updates

# After so many failed transfers to a host that is there, it does without the mean.
_MOST_TRIES = 5


class MeanTransfers:
    """One attempt to compute a mean and bring it to all takers.

    Parameters
    ----------
    name
        Of the round, as hosts know it.
    attempt
        Tells keys of this attempt from those of earlier ones.
    parts
        The contributions.
    takers
        Hosts with workers that wait for the mean.
    tolerant
        Whether the mean still goes to the other takers when one of them is gone. No worker gets it then
        before all takers have it, so that none has it alone. Otherwise a lost taker is a failure.
    on_end
        Called once: with None when all takers have the mean, else with the reason. No host that is there has
        the mean then, or takers are not tolerated to be gone.
    """

    def __init__(
        self,
        known: KnownHosts,
        name: str,
        attempt: int,
        parts: Sequence[FabricUpdate],
        takers: set[str],
        *,
        tolerant: bool,
        on_end: Callable[[str | None], None],
    ) -> None:
        self._known, self._name = known, name
        self._mark = name if not attempt else f"{name}~{attempt}"
        self._parts = sorted(parts, key=lambda part: part.held.id)
        self._form = mean_form([part.held.form for part in parts])
        self._takers, self._left = set(takers), set(takers)
        self._tolerant, self._on_end = tolerant, on_end
        self._holders: set[str] = set()
        self._tries = dict.fromkeys(takers, 0)
        self._root = ""
        self._missing = 0
        self._over = False

    @property
    def _key(self) -> str:
        return f"r/{self._mark}"

    def start(self) -> None:
        """Plan the transfers and order them."""
        known, view = self._known, self._known.view()
        parts = self._parts
        total = sum(update.held.weight for update in parts)
        for update in parts:
            update.factor = update.held.weight / total
        hosts = sorted({update.host for update in parts})
        root = self._root = random.Random(self._mark).choice(hosts)  # as the paper does
        updates = updates_of(parts, view, root, 0, None)
        commits = order_updates(updates, view.capacities).commits
        plan = towards(updates, commits, view, known.relays(view), root, self._sum_size())
        if plan is None or len(commits) < len(parts):
            self._end("a link of a member carries nothing")
            return
        self._missing = len(plan.groups)
        relayed = {hop.updates for hop in plan.hops if hop.after}

        def sum_key(members: tuple[int, ...]) -> str:
            return f"s/{self._mark}/{members[0]}"

        def ended(_members: tuple[int, ...], arrived: bool) -> None:
            self._missing -= 1
            if not arrived:
                self._end("a transfer failed")
            elif not self._missing and not self._over:
                groups = [members for members, _ in plan.groups]
                keys = tuple(sum_key(g) if g in relayed else parts[g[0]].key for g in groups)
                factors = tuple(1.0 if g in relayed else parts[g[0]].factor for g in groups)
                order = AdditionOrder(key=self._key, parts=keys, factors=factors, form=self._form)
                known.tell(root, order)
                self._holders.add(root)
                self._send_on(root, sorted(self._left))

        submit_hops(
            known.transfers,
            plan.hops,
            view.names,
            parts,
            root,
            known.now(),
            sum_key,
            ended,
            purpose="reduction",
        )

    def _sum_size(self) -> AggregateSize:
        """Sums on the way are float32."""
        narrow = any(part.held.form != "float32" for part in self._parts)
        return AggregateSize(at_least_bytes=4.0 * self._parts[0].held.numbers if narrow else 0.0)

    def lose(self, host: str) -> None:
        """A host is gone; its transfers have failed already."""
        for hosts in (self._takers, self._left, self._holders):
            hosts.discard(host)
        if host == self._root and not self._holders:
            self._end(f"host {host} is gone")
        elif self._holders and not self._left:
            self._finish()

    def _send_on(self, source: str, hosts: Sequence[str]) -> None:
        size = encoded_bytes(self._parts[0].held.numbers, self._form)
        view = self._known.view()
        spread(self._known, view, source, hosts, self._key, size, self._take, self._fail, keep=True)

    def _take(self, host: str) -> None:
        if self._over or host not in self._left:
            return
        self._holders.add(host)
        self._left.discard(host)
        if not self._tolerant:
            self._deliver(host)
        if not self._left:
            self._finish()

    def _finish(self) -> None:
        if self._over:
            return
        if self._tolerant:
            for host in sorted(self._takers):
                self._deliver(host)
        self._end(None)

    def _deliver(self, host: str) -> None:
        self._known.tell(host, DeliveryOrder(key=self._key, round=self._name))

    def _fail(self, host: str) -> None:
        if self._over or host not in self._left:
            return
        holders = sorted(self._holders & self._known.hosts.keys())
        self._tries[host] += 1
        if not self._tolerant:
            self._end(f"host {host} cannot be reached")
        elif not holders:
            self._end("no host is left that has the mean")
        elif host in self._known.hosts and self._tries[host] < _MOST_TRIES:
            self._send_on(holders[0], [host])
        else:
            reason = f"host {host} cannot be reached with the mean"
            self._known.tell(host, RefusalOrder(round=self._name, reason=reason, missed=True))
            self.lose(host)

    def _end(self, reason: str | None) -> None:
        if self._over:
            return
        self._over = True
        for host in self._holders:
            self._known.tell(host, ForgetOrder(keys=(self._key,)))
        self._on_end(reason)


@dataclass(slots=True)
class _Round:
    members: int
    updates: dict[str, FabricUpdate] = field(default_factory=dict)


class Reductions:
    """Rounds that are not over."""

    def __init__(self, known: KnownHosts) -> None:
        self._known = known
        self._rounds: dict[str, _Round] = {}

    def join(self, host: str, notice: ReductionNotice) -> None:
        """Take a member in; the last one starts the round."""
        name, update = notice.round, notice.update
        assert update is not None
        found = self._rounds.setdefault(name, _Round(notice.members))
        first = next(iter(found.updates.values()), None)
        again = update.id in found.updates
        found.updates[update.id] = FabricUpdate(update, host, update.weight)
        if notice.members != found.members:
            self._end(name, f"{update.id} counts {notice.members} members, others {found.members}")
            return
        if first is not None and first.held.numbers != update.numbers:
            self._end(name, f"{update.id} has {update.numbers:,} numbers, others {first.held.numbers:,}")
            return
        if not again and len(found.updates) == found.members:
            self._start(name, found)

    def lose(self, host: str) -> None:
        """End the rounds that a host took part in."""
        for name, each in list(self._rounds.items()):
            if any(update.host == host for update in each.updates.values()):
                self._end(name, f"host {host} is gone")

    def _end(self, name: str, reason: str) -> None:
        found = self._rounds.pop(name, None)
        if found is not None:
            for host in {update.host for update in found.updates.values()}:
                self._known.tell(host, RefusalOrder(round=name, reason=reason))

    def _start(self, name: str, found: _Round) -> None:
        def ended(reason: str | None) -> None:
            if reason is not None:
                self._end(name, reason)
            else:
                self._rounds.pop(name, None)

        parts = list(found.updates.values())
        hosts = {update.host for update in parts}
        MeanTransfers(self._known, name, 0, parts, hosts, tolerant=False, on_end=ended).start()
