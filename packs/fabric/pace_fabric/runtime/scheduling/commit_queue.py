"""Groups of updates from their plan to their commit, in the order in which the server commits them."""

from collections import deque
from collections.abc import Sequence

from pace_fabric.runtime.messages import CommitNotice, CommitOrder, ForgetOrder
from pace_fabric.runtime.scheduling.commit_groups import CommitGroup, FabricUpdate
from pace_fabric.runtime.scheduling.known_hosts import KnownHosts
from pace_fabric.runtime.scheduling.replica_feed import ReplicaFeed
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from pace_fabric.runtime.scheduling.update_tickets import UpdateTickets
from pace_fabric.runtime.shards import shard_key


class CommitQueue:
    """Groups that are planned, and commits that the server was told to make.

    Attributes
    ----------
    version
        Version of the server's model in its last message.
    broken
        How many groups were given up.
    """

    def __init__(
        self, known: KnownHosts, tickets: UpdateTickets, replica: ReplicaFeed, options: SchedulerOptions
    ) -> None:
        self._known, self._tickets, self._replica = known, tickets, replica
        # Late updates are committed with "downweight": the server is to refuse none.
        self._refused_from = None if options.late == "downweight" else options.delay_bound
        self._step_momentum = options.step_momentum
        self._numbers = known.transfers.numbers
        self._planned: deque[CommitGroup] = deque()
        self._ordered: dict[int, CommitGroup] = {}
        self.version = 0
        self.commits = self.committed = self.broken = 0

    def __len__(self) -> int:
        return len(self._planned)

    @property
    def planned_version(self) -> int:
        """Version of the model after all planned commits."""
        return self.version + sum(len(group.members) for group in self._groups())

    @property
    def answered(self) -> bool:
        """Whether the server has answered all commits that it was told to make."""
        return not self._ordered

    def _groups(self) -> list[CommitGroup]:
        return [*self._planned, *self._ordered.values()]

    def has(self, update: str) -> bool:
        """Return whether an update is in a group."""
        return any(member.held.id == update for group in self._groups() for member in group.members)

    def next_number(self) -> int:
        """Return the number of a new group."""
        self._numbers += 1
        return self._numbers

    def append(self, group: CommitGroup) -> None:
        """Put a group behind all others."""
        self._planned.append(group)
        self._replica.add(group.members)

    def tell_replica(self) -> None:
        """Name to a new replica what is planned."""
        for group in self._planned:
            self._replica.add(group.members)

    # Groups that do not arrive.

    def break_up(self, group: CommitGroup) -> None:
        """Take a group out of the queue; its members that are still kept are planned again."""
        if group not in self._planned:
            return
        self._planned.remove(group)
        self.broken += 1
        for number in group.transfers:
            self._known.transfers.fail(number)
        self._replica.remove(group.members)
        keys = tuple(member.key for member in group.members)
        if group.aggregator is not None:
            shards = max(len(self._known.servers()), 1)
            forgotten = tuple(shard_key(key, shard, shards) for key in keys for shard in range(shards))
            self._known.tell(group.aggregator, ForgetOrder(keys=forgotten))
        servers = self._known.servers()
        for shard, server in enumerate(servers):
            self._known.tell(server, ForgetOrder(keys=(shard_key(group.key, shard, len(servers)),)))
        self._tickets.wait_again(group.members)

    def lose(self, host: str) -> None:
        """Break up the groups that need a host that is gone."""
        for group in [g for g in self._planned if not g.arrived and host in g.hosts]:
            self.break_up(group)

    def lose_server(self) -> None:
        """Break up all groups."""
        for group in list(self._planned):
            self.break_up(group)

    def take_ordered(self) -> list[FabricUpdate]:
        """Return the updates that the server was told to commit and has not answered for, and forget them."""
        ordered = [member for group in self._ordered.values() for member in group.members]
        self._ordered.clear()
        return ordered

    # Commits.

    @property
    def ordered_version(self) -> int:
        """Version of the model after all commits that the server was told to make."""
        return self.version + sum(len(group.members) for group in self._ordered.values())

    def order_what_may(self, servers: Sequence[str]) -> bool:
        """Order commits from the head of the queue; return whether the replica's bound holds one back."""
        while self._planned and self._planned[0].arrived:
            group = self._planned[0]
            if not self._replica.may_commit(group.members):
                return True
            self._planned.popleft()
            self._ordered[group.number] = group
            self._replica.order(group.members)
            for shard, server in enumerate(servers):
                order = CommitOrder(
                    number=group.number,
                    key=shard_key(group.key, shard, len(servers)),
                    members=tuple(member.member() for member in group.members),
                    scaled=group.aggregator is not None,
                    exact=self._step_momentum > 0 and len(group.members) > 1,
                    planned_s=group.planned_s,
                    arrived_s=group.arrived_s,
                    delay_bound=self._refused_from,
                )
                self._known.tell(server, order)
        return False

    def answer(self, notice: CommitNotice) -> bool:
        """Take the server's answer; return whether it was told to make this commit."""
        group = self._ordered.get(notice.number)
        if group is None:
            return False
        group.unanswered -= 1
        if group.unanswered > 0:
            return True
        del self._ordered[notice.number]
        self.version = notice.version
        if notice.expired:
            # The guard of the server: a plan keeps every bound, so this is for what no plan can know.
            self._replica.remove(group.members)
            for update in group.members:
                if update.held.id in notice.expired:
                    self._tickets.drop(update, "expired")
            self._tickets.wait_again([u for u in group.members if u.held.id not in notice.expired])
            return True
        self.commits += 1
        self.committed += len(group.members)
        before = notice.version - len(group.members)
        for place, update in enumerate(group.members):
            self._tickets.commit(update, before + place + 1)
        self._replica.committed(group.members)
        return True
