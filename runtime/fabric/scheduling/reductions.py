"""Weighted means of all members' updates: to one host, added on the way, and from there to all."""

import random
from dataclasses import dataclass, field

from pace.fabric.solver.ordering import order_updates
from pace.runtime.fabric.messages import AdditionOrder, DeliveryOrder, ReductionNotice, RefusalOrder
from pace.runtime.fabric.scheduling.commit_groups import FabricUpdate, submit_hops, towards, updates_of
from pace.runtime.fabric.scheduling.known_hosts import KnownHosts
from pace.runtime.fabric.scheduling.model_requests import spread


@dataclass(slots=True)
class _Round:
    members: int
    updates: dict[str, FabricUpdate] = field(default_factory=dict)
    missing: int = 0
    over: bool = False


class Reductions:
    """Rounds that are not over."""

    def __init__(self, known: KnownHosts) -> None:
        self._known = known
        self._rounds: dict[str, _Round] = {}

    def join(self, host: str, notice: ReductionNotice) -> None:
        """Take a member in; the last one starts the round."""
        name = notice.round
        found = self._rounds.setdefault(name, _Round(notice.members))
        first = next(iter(found.updates.values()), None)
        again = notice.update.id in found.updates
        found.updates[notice.update.id] = FabricUpdate(notice.update, host, notice.update.weight)
        if notice.members != found.members:
            self._end(name, f"{notice.update.id} counts {notice.members} members, others {found.members}")
            return
        if first is not None and first.held.size_bytes != notice.update.size_bytes:
            self._end(
                name, f"{notice.update.id} has {notice.update.size_bytes:,} bytes, others another number"
            )
            return
        if not again and len(found.updates) == found.members:
            self._start(name, found)

    def lose(self, host: str) -> None:
        """End the rounds that a host took part in."""
        for name, each in list(self._rounds.items()):
            if any(update.host == host for update in each.updates.values()):
                self._end(name, f"host {host} is gone")

    def _end(self, name: str, reason: str) -> None:
        found = self._rounds.pop(name)
        found.over = True
        for host in {update.host for update in found.updates.values()}:
            self._known.tell(host, RefusalOrder(round=name, reason=reason))

    def _start(self, name: str, found: _Round) -> None:
        known, view = self._known, self._known.view()
        parts = [found.updates[update] for update in sorted(found.updates)]
        total = sum(update.held.weight for update in parts)
        for update in parts:
            update.factor = update.held.weight / total
        hosts = sorted({update.host for update in parts})
        root = random.Random(name).choice(hosts)  # as the paper does; the same for the same round
        updates = updates_of(parts, view, root, 0, None)
        order = order_updates(updates, view.capacities).commits
        plan = towards(updates, order, view, known.relays(view), root)
        if plan is None or len(order) < len(parts):
            self._end(name, "a link of a member carries nothing")
            return
        found.missing = len(plan.groups)
        relayed = {hop.updates for hop in plan.hops if hop.after}

        def sum_key(members: tuple[int, ...]) -> str:
            return f"s/{name}/{members[0]}"

        def ended(_members: tuple[int, ...], arrived: bool) -> None:
            found.missing -= 1
            if not arrived and not found.over:
                self._end(name, "a transfer failed")
            elif not found.missing and not found.over:
                groups = [members for members, _ in plan.groups]
                keys = tuple(sum_key(g) if g in relayed else parts[g[0]].key for g in groups)
                factors = tuple(1.0 if g in relayed else parts[g[0]].factor for g in groups)
                known.tell(root, AdditionOrder(key=f"r/{name}", parts=keys, factors=factors))
                self._send_back(name, found, root, hosts)

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

    def _send_back(self, name: str, found: _Round, root: str, hosts: list[str]) -> None:
        key, left = f"r/{name}", set(hosts)

        def deliver(host: str) -> None:
            self._known.tell(host, DeliveryOrder(key=key, round=name))
            left.discard(host)
            if not left:
                self._rounds.pop(name, None)

        def failed(host: str) -> None:
            left.discard(host)
            if name in self._rounds:
                self._end(name, f"host {host} cannot be reached")

        size = next(iter(found.updates.values())).held.size_bytes
        spread(self._known, self._known.view(), root, hosts, key, size, deliver, failed)
