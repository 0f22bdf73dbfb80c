"""Plans what waits: the order of commits, the sums on the way, and the transfers to the server.

``warm_up`` loads the compiled loops before anybody waits for them: the first time they are compiled.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from pace_fabric.runtime.scheduling.commit_groups import (
    NOTHING,
    CommitGroup,
    FabricUpdate,
    order_batch,
    submit_hops,
    towards,
    updates_of,
)
from pace_fabric.runtime.scheduling.commit_queue import CommitQueue
from pace_fabric.runtime.scheduling.known_hosts import KnownHosts, NetworkView
from pace_fabric.runtime.scheduling.replica_feed import ReplicaFeed
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from pace_fabric.runtime.scheduling.update_tickets import UpdateTickets
from pace_fabric.solver.aggregation import Aggregation, Hop, aggregate, aggregate_alike
from pace_fabric.solver.capacity import Capacities
from pace_fabric.solver.distribution import distribute
from pace_fabric.solver.ordering import order_updates
from pace_fabric.solver.updates import Updates


class BatchPlanner:
    """Takes updates that wait and makes groups of them.

    Attributes
    ----------
    planned_server_bytes
        What was planned to go over the server's link so far.
    """

    def __init__(
        self,
        options: SchedulerOptions,
        known: KnownHosts,
        tickets: UpdateTickets,
        commits: CommitQueue,
        replica: ReplicaFeed,
    ) -> None:
        self._options, self._known, self._tickets, self._commits = options, known, tickets, commits
        self._replica = replica
        self._next_s = 0.0
        self._weighted = options.merge == "weighted-mean"
        self.planned_server_bytes = 0

    def plan(self, servers: Sequence[str]) -> None:
        """Plan what waits, at most once in a tick, if the servers' ways down are nearly free.

        Planning at every event would make batches of one or two, and nothing to add on the way.
        """
        model_bytes = sum(self._known.hosts[server].registration.model_bytes for server in servers)
        self._tickets.fail_misfits(model_bytes // 4)
        waiting = self._waiting()
        if not waiting or self._known.now() < self._next_s:
            return
        self._next_s = self._known.now() + self._options.tick_s
        view = self._known.view()
        if max(view.busy_s(server, "down") for server in servers) >= self._options.tick_s:
            return
        for update in waiting:
            if not update.again:
                update.factor = 1.0 if self._weighted else update.held.weight
        bound = self._options.delay_bound
        parts = [
            updates_of(waiting, view, server, self._commits.planned_version, bound, (shard, len(servers)))
            for shard, server in enumerate(servers)
        ]
        order, dropped = order_batch(waiting, parts[0], view, self._options.late, servers)
        for drop in dropped:
            witness = tuple(waiting[place].held.id for place in drop.witness)
            self._tickets.drop(waiting[drop.update], drop.reason, witness)
        relays = [] if _are_again(waiting) else list(self._known.relays(view))
        plans = self._towards_all(waiting, parts, order, view, relays, servers)
        if plans and order:
            self._submit(plans, order, waiting, view, servers)

    def _towards_all(
        self,
        waiting: Sequence[FabricUpdate],
        parts: Sequence[Updates],
        order: Sequence[int],
        view: NetworkView,
        relays: Sequence[int],
        servers: Sequence[str],
    ) -> list[Aggregation]:
        """Return a plan for each server: the same groups for all, from the server that is slowest alone."""
        sizes = [
            self._options.sum_size(waiting, self._known.hosts[server].registration.model_bytes)
            for server in servers
        ]
        alone = [
            towards(each, order, view, relays, server, size)
            for each, server, size in zip(parts, servers, sizes, strict=True)
        ]
        found = [plan for plan in alone if plan is not None]
        if len(found) < len(servers) or len(servers) == 1:
            return found if len(found) == len(servers) else []
        slowest = max(found, key=lambda plan: plan.last_s)
        plans: list[Aggregation] = []
        left = view.capacities
        for each, server, size in zip(parts, servers, sizes, strict=True):
            target = view.number[server]
            plans.append(aggregate_alike(slowest, each, order, left, target=target, size=size))
            left = plans[-1].left
        return plans

    def _waiting(self) -> list[FabricUpdate]:
        """Return what to plan now; what a dead server had committed comes before all others."""
        here = [u for u in self._tickets.pending.values() if u.host in self._known.hosts]
        return [u for u in here if u.again] or here

    def _submit(
        self,
        plans: Sequence[Aggregation],
        order: Sequence[int],
        waiting: list[FabricUpdate],
        view: NetworkView,
        servers: Sequence[str],
    ) -> None:
        now = self._known.now()
        share = None
        if not _are_again(waiting) and len(servers) == 1:
            share = self._replica.share([waiting[place] for place in order], plans[0], view, servers[0])
        plans = plans if share is None else [share.server]
        groups = self._groups(plans, waiting, view, now)

        def ended(members: tuple[int, ...], arrived: bool) -> None:
            group = groups[members[0]]
            if arrived:
                group.missing -= 1
                group.arrived_s = self._known.now()
            else:
                self._commits.break_up(group)

        for shard, (plan, server) in enumerate(zip(plans, servers, strict=True)):

            def submit(
                hops: Sequence[Hop],
                earlier: Sequence[int],
                waits: Mapping[int, Sequence[int]],
                server: str = server,
                shard: int = shard,
            ) -> list[int]:
                return submit_hops(
                    self._known.transfers,
                    hops,
                    view.names,
                    waiting,
                    server,
                    now,
                    lambda members: groups[members[0]].key,
                    ended,
                    momentum=self._options.step_momentum,
                    earlier=earlier,
                    waits=waits,
                    shard=(shard, len(servers)),
                )

            # What the replica must have first goes before the transfers that wait for it, behind the others.
            first = min(share.held, default=len(plan.hops)) if share is not None else len(plan.hops)
            numbers = submit(plan.hops[:first], (), NOTHING)
            if share is not None:
                waits = dict.fromkeys(share.held, self._replica.send(share))
                numbers += submit(plan.hops[first:], numbers, waits)
            for hop, number in zip(plan.hops, numbers, strict=True):
                groups[hop.updates[0]].transfers.append(number)
                if view.names[hop.target] == server and hop.source != hop.target:
                    self.planned_server_bytes += round(hop.size_bytes)

    def _groups(
        self, plans: Sequence[Aggregation], waiting: list[FabricUpdate], view: NetworkView, now_s: float
    ) -> dict[int, CommitGroup]:
        """Queue the groups of a plan; return the group of every update."""
        plan = plans[0]
        relayed = {hop.updates: view.names[hop.source] for hop in plan.hops if hop.after}
        groups: dict[int, CommitGroup] = {}
        for rank, (places, _) in enumerate(plan.groups):
            at = max(each.groups[rank][1] for each in plans)
            members = [waiting[place] for place in places]
            group = CommitGroup(self._commits.next_number(), members, relayed.get(places), now_s + at)
            group.missing = group.unanswered = len(plans)
            group.hosts = {update.host for update in members}
            if group.aggregator is not None:
                group.hosts.add(group.aggregator)
            if self._weighted and not _are_again(members):
                total = sum(update.held.weight for update in members)
                for update in members:
                    update.factor *= update.held.weight / total
            for place, update in enumerate(members):
                update.sequence = (group.number, place)
                del self._tickets.pending[update.held.id]
            self._commits.append(group)
            groups |= dict.fromkeys(places, group)
        return groups


def _are_again(updates: list[FabricUpdate]) -> bool:
    return all(update.again for update in updates)


def warm_up() -> None:
    """Plan something small."""
    capacities = Capacities.constant([1.0] * 4, [1.0] * 4)
    updates = Updates(size=np.ones(3), host=np.array([0, 1, 2]), server=3)
    order = order_updates(updates, capacities)
    aggregate(updates, order.commits, capacities, [0, 1])
    distribute(capacities, 3, [0, 1, 2], 1.0, [0, 1])
