"""Updates that the replica still has to receive, and the limit on the server's lead.

The replica gets the same updates in the same order, as planned with every batch. They may be summed on the
way in groups of their own, unless there is momentum and a commit is one step: then a group of the server is a
group of the replica. What it has received in order counts as had: it is applied after the server's commit, or
when the server is gone. Plans rest on estimates; that the bound holds does not.
"""

from collections.abc import Sequence
from dataclasses import replace

from pace.runtime.event_log import log
from pace_fabric.runtime.messages import (
    AdditionOrder,
    AdoptionOrder,
    CommitOrder,
    ForgetOrder,
    ReleaseOrder,
    SnapshotOrder,
)
from pace_fabric.runtime.scheduling.commit_groups import FabricUpdate, submit_hops, towards, updates_of
from pace_fabric.runtime.scheduling.known_hosts import KnownHosts, NetworkView
from pace_fabric.runtime.scheduling.replica_share import (
    ReplicaShare,
    ReplicaUnit,
    plan_share,
    whole_steps,
)
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from pace_fabric.solver import divergence
from pace_fabric.solver.aggregation import Aggregation, Hop
from pace_fabric.solver.replication import LeadLimit


class ReplicaFeed:
    """The replica's side of a scheduler.

    Parameters
    ----------
    options
        Without a limit on the divergence there is no replica.
    """

    def __init__(self, known: KnownHosts, options: SchedulerOptions) -> None:
        self._known, self._options = known, options
        limit = options.divergence
        self._limit = (
            None if limit is None else LeadLimit(kind=limit.kind, most=limit.max, gamma=options.momentum)
        )
        self.in_step = False
        self._resync: str | None = None
        self._to_release: list[FabricUpdate] = []
        self.history_norm = 0.0
        self.version = 0
        self._waiting: list[FabricUpdate] = []  # in commit order, from the first that is not applied
        self._units: list[ReplicaUnit] = []
        self._applying: dict[int, ReplicaUnit] = {}
        self._ordered: list[FabricUpdate] = []  # of those that wait, what the server was told to commit
        self._committed: set[str] = set()
        self._lost: set[str] = set()
        self._failures = 0
        self._numbers = 0
        self.applied = 0
        self.greatest_lead = 0.0

    @property
    def wanted(self) -> bool:
        """Whether a replica is to be kept."""
        return self._limit is not None

    @property
    def present(self) -> bool:
        """Whether there is a replica."""
        return self._known.holder("replica") is not None

    # What the server does.

    def add(self, members: Sequence[FabricUpdate]) -> None:
        """Record updates that are planned for the server, in commit order."""
        if self.wanted and self.present:
            self._waiting += members

    def remove(self, members: Sequence[FabricUpdate]) -> None:
        """Take back updates that the server will not commit now."""
        gone = {update.held.id for update in members}
        for unit in [u for u in self._units if any(m.held.id in gone for m in u.members)]:
            self._drop_unit(unit)
        self._waiting = [update for update in self._waiting if update.held.id not in gone]
        self._ordered = [update for update in self._ordered if update.held.id not in gone]

    def order(self, members: Sequence[FabricUpdate]) -> None:
        """Record a commit that the server was told to make."""
        if self.wanted and self.present:
            self._ordered += members
            self.greatest_lead = max(self.greatest_lead, self._lead([]))

    def committed(self, members: Sequence[FabricUpdate]) -> None:
        """Record a commit; what the replica needs not is released."""
        if self.wanted and self.present:
            self._committed |= {update.held.id for update in members}
            self._apply()
        else:
            self._release(members)

    def may_commit(self, members: Sequence[FabricUpdate]) -> bool:
        """Return whether the bound still holds once the server has committed these too."""
        if self._limit is None or not self.present:
            return True
        return self.in_step and self._lead(members) <= self._limit.most

    def _lead(self, more: Sequence[FabricUpdate]) -> float:
        assert self._limit is not None
        here, ahead = self._received(), [*self._ordered, *more]
        received = [update for update in self._waiting[:here] if update in ahead]
        rest = [update for update in ahead if update not in set(received)]
        limit = replace(self._limit, history_norm=self.history_norm)
        if limit.kind == "updates":
            return limit.lead([], [1.0] * len(rest))
        return limit.lead(self._steps(received), self._steps(rest))

    def _steps(self, updates: Sequence[FabricUpdate]) -> list[float]:
        """Return a bound on the norm of each of the server's steps."""
        if self._options.exact_momentum:
            return [update.norm for update in updates]
        steps: dict[int, float] = {}
        for update in updates:
            steps[update.sequence[0]] = steps.get(update.sequence[0], 0.0) + update.norm
        return list(steps.values())

    def _received(self) -> int:
        """Return how many of the waiting updates the replica has without a gap."""
        have = {m.held.id for unit in self._units if not unit.missing for m in unit.members}
        have |= {m.held.id for unit in self._applying.values() for m in unit.members}
        for place, update in enumerate(self._waiting):
            if update.held.id not in have:
                return place
        return len(self._waiting)

    # What the replica receives.

    def share(
        self,
        batch: Sequence[FabricUpdate],
        plan: Aggregation,
        view: NetworkView,
        server: str,
    ) -> ReplicaShare | None:
        """Plan what the replica receives of a batch, and which of the server's transfers wait for it.

        Parameters
        ----------
        batch
            The updates in commit order.
        """
        replica = self._known.holder("replica")
        if self._limit is None or replica is None or not self.in_step:
            return None
        under_way = {m.held.id for u in (*self._units, *self._applying.values()) for m in u.members}
        here = [update for update in self._waiting if update.held.id in under_way]
        punted = [update for update in self._waiting if update.held.id not in under_way]
        if any(update.held.id in self._lost for update in punted):
            return None
        norms = self._steps(here)
        history = divergence.history_bound(norms, self.history_norm, self._limit.gamma)
        limit = replace(self._limit, history_norm=history)
        relays = self._relays(view)
        model_bytes = self._known.hosts[replica].registration.model_bytes
        size = self._options.sum_size([*punted, *batch], model_bytes)
        holders = (server, replica)
        return plan_share(punted, batch, plan, view, holders, limit, relays, size, self._options)

    def _relays(self, view: NetworkView) -> tuple[int, ...]:
        one_step = self._options.momentum > 0 and not self._options.exact_momentum
        return () if one_step else self._known.relays(view)

    def feed(self, *, blocked: bool, idle: bool) -> None:
        """Send all that the replica lacks, if the server waits for it, or if there is nothing else to do."""
        replica = self._known.holder("replica")
        if self._limit is None or replica is None or not self.in_step or self._units or self._applying:
            return
        if not self._waiting or not (blocked or (idle and not self._options.replicate_patiently)):
            return
        prefix = list(self._waiting)
        if self._failures > 1 or any(update.held.id in self._lost for update in prefix):
            self._resynchronize()  # a host that kept an update is gone, say: only the server has it
            return
        view = self._known.view()
        updates = updates_of(prefix, view, replica, 0, None)
        relays = self._relays(view)
        size = self._options.sum_size(prefix, self._known.hosts[replica].registration.model_bytes)
        plan = towards(updates, range(len(prefix)), view, relays, replica, size)
        if plan is None:
            return
        groups = [group for group, _ in plan.groups]
        if self._options.momentum and not self._options.exact_momentum:
            groups = whole_steps([update.sequence for update in prefix])
        self._send(prefix, groups, plan.hops, view, urgency=0 if blocked else 2)

    def send(self, share: ReplicaShare) -> list[int]:
        """Queue the replica's transfers of a batch; return their numbers."""
        return self._send(share.queue, share.groups, share.hops, share.view, urgency=1)

    def _send(
        self,
        queue: Sequence[FabricUpdate],
        groups: Sequence[tuple[int, ...]],
        hops: Sequence[Hop],
        view: NetworkView,
        urgency: int,
    ) -> list[int]:
        replica = self._known.holder("replica")
        assert replica is not None
        units: dict[tuple[int, ...], ReplicaUnit] = {}
        for group in groups:
            self._numbers += 1
            unit = ReplicaUnit.of(self._numbers, group, queue, hops)
            self._units.append(unit)
            units |= dict.fromkeys(((place,) for place in group), unit)
            units[group] = unit

        def ended(members: tuple[int, ...], arrived: bool) -> None:
            unit = units[members[:1]]
            if not arrived:
                self._failures += not unit.failed
                self._drop_unit(unit)
            elif not unit.failed:
                unit.missing -= 1
                if not unit.missing and unit.scaled and not unit.relayed:
                    keys = tuple(member.key for member in unit.members)
                    factors = tuple(member.factor for member in unit.members)
                    self._known.tell(replica, AdditionOrder(key=unit.key, parts=keys, factors=factors))
                self._apply()

        numbers = submit_hops(
            self._known.transfers,
            hops,
            view.names,
            queue,
            replica,
            self._known.now(),
            lambda members: units[members].key,
            ended,
            urgency=urgency,
            purpose="replica",
            momentum=self._options.step_momentum,
        )
        for hop, number in zip(hops, numbers, strict=True):
            units[hop.updates[:1]].transfers.append(number)
        return numbers

    def _drop_unit(self, unit: ReplicaUnit) -> None:
        """Give up a unit, and with it those that come later: they are planned again."""
        if unit not in self._units:
            return
        for each in self._units[self._units.index(unit) :]:
            each.failed = True
            replica = self._known.holder("replica")
            keys = (each.key, *(member.key for member in each.members))
            if replica is not None:
                self._known.tell(replica, ForgetOrder(keys=keys))
        last = self._units.index(unit)
        gone, self._units = self._units[last:], self._units[:last]
        for each in gone:
            for number in each.transfers:
                self._known.transfers.fail(number)

    def _apply(self) -> None:
        """Let the replica apply the updates that it has in order and that the server has committed."""
        replica = self._known.holder("replica")
        while replica is not None and self._units and not self._units[0].missing:
            unit = self._units[0]
            if any(member.held.id not in self._committed for member in unit.members):
                return
            self._send_commit(replica, unit)

    def _send_commit(self, replica: str, unit: ReplicaUnit) -> None:
        self._units.remove(unit)
        self._applying[unit.number] = unit
        now = self._known.now()
        self._known.tell(
            replica,
            CommitOrder(
                number=unit.number,
                key=unit.key,
                members=tuple(member.member() for member in unit.members),
                scaled=unit.scaled,
                exact=self._options.step_momentum > 0 and len(unit.members) > 1,
                planned_s=now,
                arrived_s=now,
            ),
        )

    def applied_by_replica(self, number: int, version: int, history_norm: float) -> None:
        """Record what the replica has applied."""
        unit = self._applying.pop(number, None)
        if unit is None:
            return
        self._failures = 0
        self.version, self.history_norm = version, history_norm
        self.applied += len(unit.members)
        gone = {member.held.id for member in unit.members}
        self._waiting = [update for update in self._waiting if update.held.id not in gone]
        self._ordered = [update for update in self._ordered if update.held.id not in gone]
        self._committed -= gone
        self._release(unit.members)

    def _release(self, members: Sequence[FabricUpdate]) -> None:
        for host in {update.host for update in members}:
            mine = tuple(update.held.id for update in members if update.host == host)
            self._known.tell(host, ReleaseOrder(updates=mine))

    # Coming, going, and taking the server's place.

    def join(self, *, version: int, history_norm: float, same: bool) -> None:
        """Record a replica; unless it is the same as the server, it gets a snapshot."""
        self._forget()
        self.version, self.history_norm = version, history_norm
        if same:
            self.in_step = True
        else:
            self._resynchronize()

    def _forget(self) -> None:
        self.in_step, self._resync = False, None
        self._units.clear()
        self._applying.clear()
        released, self._waiting = self._waiting, []
        self._release([update for update in released if update.held.id in self._committed])
        self._committed.clear()
        self._ordered.clear()

    def lose(self, host: str) -> None:
        """A host is gone, with the updates that it kept for the replica."""
        self._lost = {
            update.held.id for update in self._waiting if update.host == host or update.held.id in self._lost
        }

    def leave(self) -> None:
        """The replica is gone: nothing is kept for it."""
        self._forget()

    def _resynchronize(self) -> None:
        server = self._known.holder("server")
        if server is None or self._resync is not None:
            return
        self._numbers += 1
        self._failures = 0
        self.in_step = False
        self._resync = f"x/{self._numbers}"
        self._units.clear()
        self._applying.clear()
        # The snapshot has every commit that was ordered so far.
        had, self._ordered = {update.held.id for update in self._ordered}, []
        self._to_release += [update for update in self._waiting if update.held.id in had]
        self._waiting = [update for update in self._waiting if update.held.id not in had]
        self._known.tell(server, SnapshotOrder(key=self._resync, whole=True))

    def taken(self, server: str, key: str, version: int, size_bytes: int) -> bool:
        """Send a snapshot to the replica; return whether it was for it."""
        replica = self._known.holder("replica")
        if key != self._resync or replica is None:
            return False

        def ended(arrived: bool) -> None:
            if not arrived or key != self._resync:
                self._resync = None
                if self.present and arrived is False:
                    self._resynchronize()
                return
            self._known.tell(replica, AdoptionOrder(key=key))
            self._resync, self.in_step, self.version = None, True, version
            self._release(self._to_release)
            self._to_release = []
            log.info("pace.fabric_replica_synchronized", version=version)

        self._known.transfers.submit(
            server, replica, key, size_bytes, ended, urgency=0, once=True, purpose="snapshot"
        )
        return True

    def take_over(self) -> tuple[int, list[FabricUpdate]]:
        """Have the replica apply what it received of the commits that the server was told to make.

        Returns its version then, and the updates of those commits that it lacks, in order.
        """
        replica = self._known.holder("replica")
        assert replica is not None
        ordered = list(self._ordered)
        self._committed |= {update.held.id for update in ordered}
        self._apply()
        had = {member.held.id for unit in self._applying.values() for member in unit.members}
        version = self.version + len(had)
        self._units.clear()
        lacking = [update for update in ordered if update.held.id not in had]
        self._waiting = [update for update in self._waiting if update.held.id in had]
        self._ordered.clear()
        self._limit = None  # nothing follows the new server
        return version, lacking
