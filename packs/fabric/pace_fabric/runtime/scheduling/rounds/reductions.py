"""Weighted means of a fixed number of members: all take part, or the round fails."""

from dataclasses import dataclass, field

from pace_fabric.runtime.messages.groups import ReductionNotice
from pace_fabric.runtime.messages.hosts import RefusalOrder
from pace_fabric.runtime.scheduling.commit_groups import FabricUpdate
from pace_fabric.runtime.scheduling.known_hosts import KnownHosts
from pace_fabric.runtime.scheduling.rounds.mean_transfers import MeanTransfers


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
