"""The scheduler of a fabric: knows every host and every update, and says what goes where, in which order.

One thread handles everything that happens. Its state can be had again from what hosts say when they call, so
a scheduler that is started again goes on where the one before it ended.
"""

import contextlib
import json
import queue
import ssl
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from pace.documents.fabric.batch import DivergenceLimit
from pace.documents.fabric.transfer_plan import LatePolicy
from pace.runtime.event_log import log
from pace.runtime.fabric.connection import FabricLink, Listener
from pace.runtime.fabric.messages import (
    ArrivalNotice,
    CommitNotice,
    CommitOrder,
    FailureNotice,
    ForgetOrder,
    HeldUpdate,
    HostRegistration,
    Message,
    ModelWanted,
    PromotionOrder,
    ReductionNotice,
    RefusalOrder,
    ReleaseOrder,
    SnapshotNotice,
    StatusAnswer,
    StatusCall,
    TicketOrder,
    UpdateNotice,
    WelcomeOrder,
)
from pace.runtime.fabric.scheduling.commit_groups import (
    CommitGroup,
    FabricUpdate,
    Merge,
    order_batch,
    submit_hops,
    towards,
    updates_of,
)
from pace.runtime.fabric.scheduling.known_hosts import KnownHost, KnownHosts
from pace.runtime.fabric.scheduling.link_rates import MeasuredState, NetworkState
from pace.runtime.fabric.scheduling.model_requests import ModelRequests
from pace.runtime.fabric.scheduling.reductions import Reductions
from pace.runtime.fabric.scheduling.replica_feed import ReplicaFeed

_MOST_KNOWN = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """How a scheduler plans.

    Attributes
    ----------
    delay_bound
        Every committed update's delay stays below it; None for no bound.
    late
        What becomes of an update that others overtake past its deadline.
    merge
        Whether a commit adds its updates, or their mean with their weights.
    aggregators, most_aggregators
        Hosts that may add, all of them if None; and how many at most.
    divergence
        How far the server may lead its replica; None for no replica.
    tick_s
        How often is planned at least, and how far ahead the server's link is booked.
    failover_s
        How long a server may be gone before the replica takes its place.
    """

    delay_bound: int | None = None
    late: LatePolicy = "drop"
    merge: Merge = "sum"
    momentum: float = 0.0
    aggregators: tuple[str, ...] | None = None
    most_aggregators: int | None = None
    divergence: DivergenceLimit | None = None
    tick_s: float = 0.1
    failover_s: float = 2.0
    transfer_log: Path | None = None


@dataclass(slots=True)
class _Counts:
    committed: int = 0
    commits: int = 0
    planned_server_bytes: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    failed: int = 0


class FabricScheduler:
    """Listening and planning from the start.

    Parameters
    ----------
    state
        What links carry; measured by receivers unless given.
    """

    def __init__(
        self,
        options: SchedulerOptions,
        *,
        bind: tuple[str, int] = ("127.0.0.1", 0),
        state: NetworkState | None = None,
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.options = options
        self.known = KnownHosts(
            MeasuredState() if state is None else state,
            aggregators=options.aggregators,
            most_aggregators=options.most_aggregators,
        )
        self.replica = ReplicaFeed(self.known, options.divergence, options.momentum)
        self._models = ModelRequests(self.known, options.tick_s)
        self._reductions = Reductions(self.known)
        self._counts = _Counts()
        self._version = 0  # of the server's model, as it said last
        self._model_bytes = 0
        self._pending: dict[str, FabricUpdate] = {}
        self._groups: deque[CommitGroup] = deque()
        self._ordered: dict[int, CommitGroup] = {}
        self._ended: OrderedDict[str, int] = OrderedDict()  # committed updates and the version of each
        self._sequence = self.known.transfers.numbers
        self._server_lost_s: float | None = None
        self._promoted: str | None = None
        self._had_replica = False
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._links: set[FabricLink] = set()
        self._closed = threading.Event()
        self._transfer_log = (
            None if options.transfer_log is None else options.transfer_log.open("a", buffering=1)
        )
        self._listener = Listener(*bind, self._accept, token=token, ssl_context=ssl_context)
        self.host, self.port = self._listener.host, self._listener.port
        self._thread = threading.Thread(target=self._run, name="pace.fabric.scheduler", daemon=True)
        self._thread.start()

    def __enter__(self) -> "FabricScheduler":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where it listens, as HOST:PORT."""
        return self._listener.address

    def close(self) -> None:
        """Stop; hosts wait for another scheduler at the same address. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._listener.close()
        self._events.put(None)
        self._thread.join(5.0)
        for link in list(self._links):
            link.close()
        if self._transfer_log is not None:
            self._transfer_log.close()

    def _accept(self, link: FabricLink) -> None:
        self._events.put(lambda: self._take_in(link))

    def _take_in(self, link: FabricLink) -> None:
        self._links.add(link)
        link.start(
            lambda link, message: self._events.put(lambda: self._take(link, message)),
            lambda link, reason: self._events.put(lambda: self._lose(link, reason)),
            lambda _link, _incoming: None,
        )

    def _run(self) -> None:
        while True:
            handles: list[Callable[[], None] | None] = []
            with contextlib.suppress(queue.Empty):
                handles.append(self._events.get(timeout=self.options.tick_s))
                while len(handles) < 1000:
                    handles.append(self._events.get_nowait())
            if None in handles or self._closed.is_set():
                return
            try:
                for handle in handles:
                    assert handle is not None
                    handle()
                self._go_on()
            except Exception as error:  # one bad event must not end the fabric
                log.exception("pace.fabric_scheduler_failed", reason=str(error))

    def _take(self, link: FabricLink, message: Message) -> None:
        if isinstance(message, HostRegistration):
            self._register(link, message)
            return
        if isinstance(message, StatusCall):
            link.send(StatusAnswer(document=json.dumps(self._status())))
            return
        host = self.known.hosts.get(link.host)
        if host is None or host.link is not link:
            return
        match message:
            case UpdateNotice():
                self._hear(message.update, link.host)
            case ModelWanted():
                self._models.want(link.host, message.at_least)
            case ReductionNotice():
                self._reductions.join(link.host, message)
            case ArrivalNotice():
                self._arrive(host, message)
            case FailureNotice():
                log.info("pace.fabric_transfer_failed", transfer=message.transfer, reason=message.reason)
                self.known.transfers.fail(message.transfer)
            case CommitNotice():
                self._committed(link.host, message)
            case SnapshotNotice():
                size = host.registration.model_bytes
                if not self._models.taken(link.host, message.key, message.version, size):
                    self.replica.taken(link.host, message.key, message.version, 2 * size + 16)
            case _:
                log.warning("pace.fabric_message_ignored", host=link.host, kind=message.kind)

    # Hosts come and go.

    def _register(self, link: FabricLink, message: HostRegistration) -> None:
        refusal = self._refusal(message)
        if refusal is not None:
            link.send(RefusalOrder(reason=refusal))
            return
        if message.host in self.known.hosts:
            self._lose(self.known.hosts[message.host].link, "it has called again")
        link.host = message.host
        self.known.hosts[message.host] = KnownHost(link, message, message.part)
        link.send(
            WelcomeOrder(
                momentum=self.options.momentum, network_state=self.known.state.name, merge=self.options.merge
            )
        )
        if message.part == "server":
            self._server_lost_s = None
            self._version, self._model_bytes = message.version, message.model_bytes
            for update, version in message.recent:
                self._note_end(update, version)
            self._settle_ordered()
        if message.part != "worker":
            self._match_replica()
        for held in message.updates:
            self._hear(held, message.host)
        log.info("pace.fabric_host", host=message.host, part=message.part, version=message.version)

    def _settle_ordered(self) -> None:
        """A server has called, and said what it has committed: end those tickets, plan the others again."""
        ordered = [member for group in self._ordered.values() for member in group.members]
        self._ordered.clear()
        self._wait_again([member for member in ordered if member.held.id not in self._ended])
        done = [member for member in ordered if member.held.id in self._ended]
        done += [self._pending.pop(each) for each in list(self._pending) if each in self._ended]
        for update in done:
            self._close_ticket(update, self._ended[update.held.id])

    def _refusal(self, message: HostRegistration) -> str | None:
        holder = None if message.part == "worker" else self.known.holder(message.part)
        if holder is not None and holder != message.host:
            return f"{holder} is the {message.part} already"
        if self._promoted not in (None, message.host) and message.part == "server":
            return "the replica has taken the server's place"
        if message.part == "replica" and not self.replica.wanted:
            return "this scheduler keeps no replica: it was given no divergence bound"
        return None

    def _match_replica(self) -> None:
        """Compare server and replica once both are here."""
        server, replica = self.known.holder("server"), self.known.holder("replica")
        if server is None or replica is None:
            return
        first, second = (self.known.hosts[name].registration for name in (server, replica))
        same = (first.version, first.digest) == (
            second.version,
            second.digest,
        ) and first.version == self._version
        self.replica.join(
            version=second.version, history_norm=second.history_norm, same=same and not self._ordered
        )
        for group in self._groups:
            self.replica.add(group.members)

    def _lose(self, link: FabricLink, reason: str) -> None:
        self._links.discard(link)
        link.close()
        host = self.known.hosts.get(link.host)
        if host is None or host.link is not link:
            return
        del self.known.hosts[link.host]
        log.warning("pace.fabric_host_lost", host=link.host, part=host.part, reason=reason)
        for update in [each for each, at in self._pending.items() if at.host == link.host]:
            del self._pending[update]
        self.known.transfers.lose(link.host)
        self._reductions.lose(link.host)
        for group in [g for g in self._groups if not g.arrived and link.host in g.hosts]:
            self._break(group)
        if host.part == "server":
            self._server_lost_s = self.known.now()
            for group in list(self._groups):
                self._break(group)
        elif host.part == "replica":
            self.replica.leave()
        else:
            self.replica.lose(link.host)
        self._models.lose(link.host)

    # Updates.

    def _hear(self, held: HeldUpdate, host: str) -> None:
        version = self._ended.get(held.id)
        if version is not None or held.committed:
            self._close_ticket(FabricUpdate(held, host), version)
            return
        known = self._pending.get(held.id)
        if known is None and not self._under_way(held.id):
            self._pending[held.id] = FabricUpdate(held, host)

    def _under_way(self, update: str) -> bool:
        groups = [*self._groups, *self._ordered.values()]
        return any(member.held.id == update for group in groups for member in group.members)

    def _close_ticket(self, update: FabricUpdate, version: int | None) -> None:
        """End the ticket of an update that was committed before this scheduler heard of it."""
        ticket = TicketOrder(update=update.held.id, outcome="committed", version=version)
        self.known.tell(update.host, ticket)
        self.known.tell(update.host, ReleaseOrder(updates=(update.held.id,)))

    def _note_end(self, update: str, version: int) -> None:
        self._ended[update] = version
        while len(self._ended) > _MOST_KNOWN:
            self._ended.popitem(last=False)

    @property
    def _planned_version(self) -> int:
        """Of the model once all that is planned is committed."""
        groups = [*self._groups, *self._ordered.values()]
        return self._version + sum(len(group.members) for group in groups)

    def _plan(self, server: str) -> None:
        """Plan what waits, if the server's way down is nearly free."""
        here = {i: u for i, u in self._pending.items() if u.host in self.known.hosts}
        again = {i: u for i, u in here.items() if u.again}
        waiting = list((again or here).values())
        if not waiting:
            return
        view = self.known.view()
        if view.busy_s(server, "down") >= self.options.tick_s:
            return
        weighted = self.options.merge == "weighted-mean"
        for update in waiting:
            if not update.again:
                update.factor = 1.0 if weighted else update.held.weight
        updates = updates_of(waiting, view, server, self._planned_version, self.options.delay_bound)
        order, dropped = order_batch(waiting, updates, view, self.options.late)
        for drop in dropped:
            witness = tuple(waiting[place].held.id for place in drop.witness)
            self._drop(waiting[drop.update], drop.reason, witness)
        relays = [] if self._are_again(waiting) else list(self.known.relays(view))
        plan = towards(updates, order, view, relays, server)
        if plan is None or not order:
            return
        now, relayed = (
            self.known.now(),
            {hop.updates: view.names[hop.source] for hop in plan.hops if hop.after},
        )
        groups: dict[int, CommitGroup] = {}
        for places, at in plan.groups:
            self._sequence += 1
            members = [waiting[place] for place in places]
            group = CommitGroup(self._sequence, members, relayed.get(places), now + at)
            group.hosts = {update.host for update in members} | (
                {relayed[places]} if places in relayed else set()
            )
            if weighted and not self._are_again(members):
                total = sum(update.held.weight for update in members)
                for update in members:
                    update.factor *= update.held.weight / total
            for place, update in enumerate(members):
                update.sequence = (group.number, place)
                del self._pending[update.held.id]
            self._groups.append(group)
            self.replica.add(members)
            groups |= dict.fromkeys(places, group)

        def ended(members: tuple[int, ...], arrived: bool) -> None:
            group = groups[members[0]]
            if arrived:
                group.arrived, group.arrived_s = True, self.known.now()
            else:
                self._break(group)

        numbers = submit_hops(
            self.known.transfers,
            plan.hops,
            view.names,
            waiting,
            server,
            now,
            lambda members: groups[members[0]].key,
            ended,
        )
        for hop, number in zip(plan.hops, numbers, strict=True):
            groups[hop.updates[0]].transfers.append(number)
            if view.names[hop.target] == server and hop.source != hop.target:
                self._counts.planned_server_bytes += round(hop.size_bytes)

    @staticmethod
    def _are_again(updates: list[FabricUpdate]) -> bool:
        return all(update.again for update in updates)

    def _drop(self, update: FabricUpdate, reason: str, witness: tuple[str, ...] = ()) -> None:
        self._pending.pop(update.held.id, None)
        worker = update.held.id.rpartition("-")[0]
        self._counts.dropped[worker] = self._counts.dropped.get(worker, 0) + 1
        self.known.tell(
            update.host,
            TicketOrder(update=update.held.id, outcome="dropped", reason=reason, witness=witness[:32]),
        )

    def _break(self, group: CommitGroup) -> None:
        """Take a group out of the queue; its members that are still kept are planned again."""
        if group not in self._groups:
            return
        self._groups.remove(group)
        self._counts.failed += 1
        for number in group.transfers:
            self.known.transfers.fail(number)
        self.replica.remove(group.members)
        keys = tuple(member.key for member in group.members)
        if group.aggregator is not None:
            self.known.tell(group.aggregator, ForgetOrder(keys=keys))
        server = self.known.holder("server")
        if server is not None:
            self.known.tell(server, ForgetOrder(keys=(group.key,)))
        self._wait_again(group.members)

    def _wait_again(self, members: list[FabricUpdate]) -> None:
        for update in members:
            if update.host in self.known.hosts:
                self._pending[update.held.id] = update

    # Commits.

    def _arrive(self, host: KnownHost, notice: ArrivalNotice) -> None:
        now = self.known.now()
        transfer = self.known.transfers.arrive(notice.transfer)
        host.received_bytes += notice.size_bytes
        host.received_wire_bytes += notice.wire_bytes
        if transfer is None or transfer.began_s is None:
            return
        if not transfer.paced:
            seconds = max(notice.seconds, now - transfer.began_s)
            self.known.state.observe(transfer.source, transfer.target, notice.size_bytes, seconds, now)
        if self._transfer_log is not None:
            line: dict[str, Any] = {
                "transfer": transfer.number,
                "purpose": transfer.purpose,
                "from": transfer.source,
                "to": transfer.target,
                "size_bytes": notice.size_bytes,
                "wire_bytes": notice.wire_bytes,
                "planned_s": transfer.planned_s,
                "began_s": transfer.began_s,
                "arrived_s": now,
                "network_state": self.known.state.name,
            }
            self._transfer_log.write(json.dumps(line) + "\n")

    def _commit_what_may(self, server: str) -> bool:
        """Order commits from the head of the queue; return whether the replica's bound holds one back."""
        while self._groups and self._groups[0].arrived:
            group = self._groups[0]
            if not self.replica.may_commit(group.members):
                return True
            self._groups.popleft()
            self._ordered[group.number] = group
            self.replica.order(group.members)
            self.known.tell(
                server,
                CommitOrder(
                    number=group.number,
                    key=group.key,
                    members=tuple(member.member() for member in group.members),
                    scaled=group.aggregator is not None,
                    planned_s=group.planned_s,
                    arrived_s=group.arrived_s,
                    delay_bound=self.options.delay_bound,
                ),
            )
        return False

    def _committed(self, host: str, notice: CommitNotice) -> None:
        group = self._ordered.pop(notice.number, None)
        if group is None:
            if host == self.known.holder("replica") or host == self._promoted:
                self.replica.applied_by_replica(notice.number, notice.version, notice.history_norm)
            return
        self._version = notice.version
        if notice.expired:
            # The guard of the server: a plan keeps every bound, so this is for what no plan can know.
            self.replica.remove(group.members)
            for update in group.members:
                if update.held.id in notice.expired:
                    self._drop(update, "expired")
            self._wait_again([u for u in group.members if u.held.id not in notice.expired])
            return
        self._counts.commits += 1
        self._counts.committed += len(group.members)
        before = notice.version - len(group.members)
        for place, update in enumerate(group.members):
            self._note_end(update.held.id, before + place + 1)
            delay = max(before + place - update.held.version, 0)
            ticket = TicketOrder(
                update=update.held.id, outcome="committed", version=before + place + 1, delay=delay
            )
            self.known.tell(update.host, ticket)
        self.replica.committed(group.members)

    # What is done after everything that happens.

    def _go_on(self) -> None:
        server = self.known.holder("server")
        if server is None:
            self._replace_server()
            server = self.known.holder("server")
        self._had_replica = self._had_replica or self.replica.present
        # Before a replica that is asked for has called, nothing may be committed; when it has died, all may.
        if server is not None and (not self.replica.wanted or self._had_replica):
            self._plan(server)
            self.known.transfers.pump(self.known.now())
            blocked = self._commit_what_may(server)
            if blocked or self.replica.wanted:
                self.replica.feed(blocked=blocked)
            if not self._replaying:
                self._models.plan(server, self._version, self._planned_version)
        self.known.transfers.pump(self.known.now())

    @property
    def _replaying(self) -> bool:
        """Whether updates that a dead server had committed are still to be committed again."""
        return any(update.again for update in self._pending.values())

    def _replace_server(self) -> None:
        lost = self._server_lost_s
        if lost is None or self.known.now() < lost + self.options.failover_s:
            return
        replica = self.known.holder("replica")
        if replica is None or not self.replica.in_step:
            for update in [*self._pending.values()]:
                del self._pending[update.held.id]
                ticket = TicketOrder(update=update.held.id, outcome="failed", reason="the server is gone")
                self.known.tell(update.host, ticket)
            return
        self._server_lost_s = None
        unanswered = [member for group in self._ordered.values() for member in group.members]
        self._ordered.clear()
        self._version, lacking = self.replica.take_over()
        for update in unanswered:
            if update not in lacking:
                self._note_end(update.held.id, self._version)
                self._close_ticket(update, self._version)
        self._promoted = replica
        host = self.known.hosts[replica]
        host.part, self._model_bytes = "server", host.registration.model_bytes
        self.known.tell(replica, PromotionOrder())
        again = {update.held.id: update for update in lacking if update.host in self.known.hosts}
        for update in again.values():
            update.again = True
        self._pending = again | {i: u for i, u in self._pending.items() if i not in again}
        log.warning("pace.fabric_failover", server=replica, version=self._version, again=len(again))

    def _status(self) -> dict[str, Any]:
        """Return what people want to know."""
        server = self.known.holder("server")
        counts = self._counts
        return {
            "network_state": self.known.state.name,
            "server": server,
            "replica": self.known.holder("replica"),
            "replica_in_step": self.replica.in_step,
            "promoted": self._promoted is not None,
            "version": self._version,
            "pending": len(self._pending),
            "planned": len(self._groups),
            "transfers": len(self.known.transfers),
            "commits": counts.commits,
            "committed": counts.committed,
            "dropped": counts.dropped,
            "broken_groups": counts.failed,
            "planned_server_bytes": counts.planned_server_bytes,
            "greatest_lead": self.replica.greatest_lead,
            "replica_applied": self.replica.applied,
            "hosts": {
                name: {
                    "part": host.part,
                    "received_bytes": host.received_bytes,
                    "received_wire_bytes": host.received_wire_bytes,
                }
                for name, host in self.known.hosts.items()
            },
        }
