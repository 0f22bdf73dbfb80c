"""Updates that wait to be planned, and how those that have ended did so: what their workers are told."""

from collections import OrderedDict
from collections.abc import Sequence

from pace_fabric.runtime.messages import ReleaseOrder, TicketOrder
from pace_fabric.runtime.scheduling.commit_groups import FabricUpdate
from pace_fabric.runtime.scheduling.known_hosts import KnownHosts
from pace_fabric.runtime.update_records import HeldUpdate, worker_and_number

_MOST_KNOWN = 100_000


class UpdateTickets:
    """Updates by their ids.

    Attributes
    ----------
    pending
        Updates that are in no plan.
    dropped
        How many of each worker's were dropped.
    """

    def __init__(self, known: KnownHosts) -> None:
        self._known = known
        self.pending: dict[str, FabricUpdate] = {}
        self.dropped: dict[str, int] = {}
        self._ended: OrderedDict[str, int] = OrderedDict()  # committed updates and the version of each

    def hear(self, held: HeldUpdate, host: str, *, under_way: bool) -> None:
        """Record an update that a host keeps."""
        version = self._ended.get(held.id)
        if version is not None or held.committed:
            self._end_late(FabricUpdate(held, host), version)
        elif held.id not in self.pending and not under_way:
            self.pending[held.id] = FabricUpdate(held, host)

    def wait_again(self, members: Sequence[FabricUpdate]) -> None:
        """Plan updates again, as far as their hosts are there."""
        for update in members:
            if update.host in self._known.hosts:
                self.pending[update.held.id] = update

    def lose(self, host: str) -> None:
        """A host is gone, with what it kept."""
        for update in [each for each, at in self.pending.items() if at.host == host]:
            del self.pending[update]

    @property
    def replaying(self) -> bool:
        """Whether updates that a dead server had committed are still to be committed again."""
        return any(update.again for update in self.pending.values())

    # How updates end.

    def commit(self, update: FabricUpdate, version: int) -> None:
        """End the ticket of an update whose commit made a version of the model."""
        self.note_end(update.held.id, version)
        delay = max(version - 1 - update.held.version, 0)
        ticket = TicketOrder(update=update.held.id, outcome="committed", version=version, delay=delay)
        self._known.tell(update.host, ticket)

    def note_end(self, update: str, version: int) -> None:
        """Remember that an update is committed, so that it is not committed again."""
        self._ended[update] = version
        while len(self._ended) > _MOST_KNOWN:
            self._ended.popitem(last=False)

    def settle(self, ordered: Sequence[FabricUpdate]) -> None:
        """A server has said what it has committed: end those tickets, plan the others again.

        Parameters
        ----------
        ordered
            What an earlier connection of the server was told to commit, without an answer.
        """
        self.wait_again([member for member in ordered if member.held.id not in self._ended])
        done = [member for member in ordered if member.held.id in self._ended]
        done += [self.pending.pop(each) for each in list(self.pending) if each in self._ended]
        for update in done:
            self._end_late(update, self._ended[update.held.id])

    def end_unanswered(self, update: FabricUpdate, version: int) -> None:
        """End the ticket of an update that the replica has, though the server could not say so."""
        self.note_end(update.held.id, version)
        self._end_late(update, version)

    def _end_late(self, update: FabricUpdate, version: int | None) -> None:
        """End the ticket of an update that was committed before this scheduler heard of it."""
        ticket = TicketOrder(update=update.held.id, outcome="committed", version=version)
        self._known.tell(update.host, ticket)
        self._known.tell(update.host, ReleaseOrder(updates=(update.held.id,)))

    def drop(self, update: FabricUpdate, reason: str, witness: tuple[str, ...] = ()) -> None:
        """End the ticket of an update that is late."""
        self.pending.pop(update.held.id, None)
        worker, _ = worker_and_number(update.held.id)
        self.dropped[worker] = self.dropped.get(worker, 0) + 1
        self._known.tell(
            update.host,
            TicketOrder(update=update.held.id, outcome="dropped", reason=reason, witness=witness[:32]),
        )

    def fail_misfits(self, numbers: int) -> None:
        """End the tickets of updates that are for a model of another size."""
        for update in [each for each in self.pending.values() if each.held.numbers != numbers]:
            self._fail(
                update, f"the update has {update.held.numbers:,} numbers, but the model has {numbers:,}"
            )

    def fail_all(self, reason: str) -> None:
        """End the tickets of all that wait."""
        for update in [*self.pending.values()]:
            self._fail(update, reason)

    def _fail(self, update: FabricUpdate, reason: str) -> None:
        del self.pending[update.held.id]
        ticket = TicketOrder(update=update.held.id, outcome="failed", reason=reason)
        self._known.tell(update.host, ticket)
