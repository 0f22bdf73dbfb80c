"""Who holds the model: the server, its replica, and what happens when the server is gone."""

from pace.runtime.event_log import log
from pace_fabric.runtime.messages import HostRegistration, PromotionOrder
from pace_fabric.runtime.scheduling.commit_queue import CommitQueue
from pace_fabric.runtime.scheduling.known_hosts import KnownHosts
from pace_fabric.runtime.scheduling.replica_feed import ReplicaFeed
from pace_fabric.runtime.scheduling.update_tickets import UpdateTickets


class ModelHolders:
    """Lets servers and replicas in, and has the replica take the server's place.

    Parameters
    ----------
    failover_s
        How long the server may be gone before that.
    num_servers
        Over how many the model is split.

    Attributes
    ----------
    promoted
        The replica that took the server's place.
    """

    def __init__(
        self,
        known: KnownHosts,
        tickets: UpdateTickets,
        commits: CommitQueue,
        replica: ReplicaFeed,
        failover_s: float,
        num_servers: int = 1,
    ) -> None:
        self._known, self._tickets, self._commits, self._replica = known, tickets, commits, replica
        self._failover_s, self._num_servers = failover_s, num_servers
        self._server_lost_s: float | None = None
        self._had_replica = False
        self.promoted: str | None = None

    def refusal(self, message: HostRegistration) -> str | None:
        """Return why a host may not play its part; None if it may."""
        if message.part == "server":
            reason = self._refusal_of_server(message)
            if reason is not None:
                return reason
        holder = self._known.holder("replica") if message.part == "replica" else None
        if holder is not None and holder != message.host:
            return f"{holder} is the {message.part} already"
        if self.promoted not in (None, message.host) and message.part == "server":
            return "the replica has taken the server's place"
        if message.part == "replica" and not self._replica.wanted:
            return (
                "this scheduler keeps no replica: start it with --divergence or --divergence-updates, which"
                " bound how far the replica may be behind"
            )
        return None

    def _refusal_of_server(self, message: HostRegistration) -> str | None:
        if (message.shards, message.shard < message.shards) != (self._num_servers, True):
            return (
                f"shard {message.shard} of {message.shards}: this scheduler has the model on"
                f" {self._num_servers} servers"
            )
        others = [name for name in self._known.servers() if name != message.host]
        for name in others:
            if self._known.hosts[name].registration.shard == message.shard:
                return f"{name} is the server already"
        expected = self._commits.ordered_version
        if others and message.version != expected:
            return f"it has version {message.version}, the other servers {expected}: start all from one model"
        return None

    def join(self, message: HostRegistration) -> None:
        """Take in what a server or replica says of its model."""
        if message.part == "server":
            self._server_lost_s = None
            self._commits.version = message.version
            for update, version in message.recent:
                self._tickets.note_end(update, version)
            self._tickets.settle(self._commits.take_ordered())
        self._match_replica()

    def _match_replica(self) -> None:
        """Compare server and replica once both are here."""
        server, replica = self._known.holder("server"), self._known.holder("replica")
        if server is None or replica is None:
            return
        first, second = (self._known.hosts[name].registration for name in (server, replica))
        same = (first.version, first.digest) == (second.version, second.digest)
        self._replica.join(
            version=second.version,
            history_norm=second.history_norm,
            same=same and first.version == self._commits.version and self._commits.answered,
        )
        self._commits.tell_replica()

    def lose_server(self) -> None:
        """The server is gone: from now on it has so long to call again."""
        self._server_lost_s = self._known.now()
        self._commits.lose_server()

    def servers(self) -> tuple[str, ...]:
        """Return the servers, none unless all are here; a replica takes the place of one that is gone."""
        if len(self._known.servers()) < self._num_servers:
            self._replace_server()
        found = self._known.servers()
        return found if len(found) == self._num_servers else ()

    def may_commit(self) -> bool:
        """Return whether a replica that is asked for has called; when it has died since, all may go on."""
        self._had_replica = self._had_replica or self._replica.present
        return not self._replica.wanted or self._had_replica

    def _replace_server(self) -> None:
        lost = self._server_lost_s
        if lost is None or self._known.now() < lost + self._failover_s:
            return
        replica = self._known.holder("replica")
        if replica is None or not self._replica.in_step:
            self._tickets.fail_all("the server is gone")
            return
        self._server_lost_s = None
        unanswered = self._commits.take_ordered()
        self._commits.version, lacking = self._replica.take_over()
        for update in unanswered:
            if update not in lacking:
                self._tickets.end_unanswered(update, self._commits.version)
        self.promoted = replica
        self._known.hosts[replica].part = "server"
        self._known.tell(replica, PromotionOrder())
        again = {update.held.id: update for update in lacking if update.host in self._known.hosts}
        for update in again.values():
            update.again = True
        pending = self._tickets.pending
        self._tickets.pending = again | {i: u for i, u in pending.items() if i not in again}
        log.warning(
            "pace.fabric_failover", server=replica, version=self._commits.version, resubmitted=len(again)
        )
