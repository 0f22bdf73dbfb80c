"""The scheduler of a fabric: knows every host and every update, and says what goes where, in which order.

One thread handles everything that happens. Its state can be had again from what hosts say when they call, so
a scheduler that is started again goes on where the one before it ended.
"""

import contextlib
import json
import queue
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pace.runtime.closing import Closing
from pace.runtime.event_log import log
from pace_fabric.runtime.byte_store import PROBE
from pace_fabric.runtime.connection import FabricLink, listen
from pace_fabric.runtime.messages import (
    ArrivalNotice,
    CommitNotice,
    ComputingNotice,
    FailureNotice,
    HostRegistration,
    MembershipNotice,
    Message,
    ModelWanted,
    ReductionNotice,
    RefusalOrder,
    SnapshotNotice,
    StateNotice,
    StatusAnswer,
    StatusCall,
    UpdateNotice,
    WelcomeOrder,
)
from pace_fabric.runtime.scheduling.admission import Admission
from pace_fabric.runtime.scheduling.batch_planner import BatchPlanner
from pace_fabric.runtime.scheduling.commit_queue import CommitQueue
from pace_fabric.runtime.scheduling.known_hosts import KnownHost, KnownHosts
from pace_fabric.runtime.scheduling.link_rates import MeasuredState, NetworkState
from pace_fabric.runtime.scheduling.model_holders import ModelHolders
from pace_fabric.runtime.scheduling.model_requests import ModelRequests
from pace_fabric.runtime.scheduling.replica_feed import ReplicaFeed
from pace_fabric.runtime.scheduling.rounds.groups import Groups
from pace_fabric.runtime.scheduling.rounds.means import Reductions
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from pace_fabric.runtime.scheduling.transfer_queue import QueuedTransfer
from pace_fabric.runtime.scheduling.update_tickets import UpdateTickets
from pace_fabric.runtime.update_records import HeldUpdate


class TransferLog:
    """Appends to a file; to none if there is no path."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.open("a", buffering=1)

    def write(
        self, transfer: QueuedTransfer, notice: ArrivalNotice, arrived_s: float, network_state: str
    ) -> None:
        """Append what is known of a transfer that has arrived."""
        if self._file is None:
            return
        line = {
            "transfer": transfer.number,
            "purpose": transfer.purpose,
            "from": transfer.source,
            "to": transfer.target,
            "size_bytes": notice.size_bytes,
            "wire_bytes": notice.wire_bytes,
            "planned_s": transfer.planned_s,
            "began_s": transfer.began_s,
            "arrived_s": arrived_s,
            "network_state": network_state,
        }
        self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class FabricScheduler(Closing):
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
        self.replica = ReplicaFeed(self.known, options)
        self._tickets = UpdateTickets(self.known)
        self._commits = CommitQueue(self.known, self._tickets, self.replica, options)
        self._planner = BatchPlanner(options, self.known, self._tickets, self._commits, self.replica)
        self._holders = ModelHolders(
            self.known, self._tickets, self._commits, self.replica, options.failover_s, options.servers
        )
        self._admission = Admission(options.delay_bound if options.late == "pace" else None)
        self._models = ModelRequests(self.known, options.tick_s, self._admission)
        self._reductions = Reductions(self.known)
        self._groups = Groups(self.known)
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._links: set[FabricLink] = set()
        self._closed = threading.Event()
        self._transfer_log = TransferLog(options.transfer_log)
        self._listener = listen(bind, self._accept, token=token, ssl_context=ssl_context)
        self.host, self.port = self._listener.host, self._listener.port
        self._thread = threading.Thread(target=self._run, name="pace_fabric.scheduler", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Address at which it listens, as HOST:PORT."""
        return self._listener.address

    def close(self) -> None:
        """Stop; hosts wait for another scheduler at the same address. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._listener.stop()
        self._events.put(None)
        self._thread.join(5.0)
        for link in list(self._links):
            link.close()
        self._transfer_log.close()

    def _accept(self, link: FabricLink) -> None:
        self._links.add(link)
        self._events.put(lambda: self._take_in(link))
        if self._closed.is_set():  # nobody takes it in any more
            link.close()

    def _take_in(self, link: FabricLink) -> None:
        link.start(
            lambda link, message: self._events.put(lambda: self._take(link, message)),
            lambda link, reason: self._events.put(lambda: self._lose(link, reason)),
            lambda _link, _incoming: None,
        )

    def _run(self) -> None:
        while True:
            handles: list[Callable[[], None] | None] = []
            with contextlib.suppress(queue.Empty):
                wait_s = min(self.options.tick_s, self.known.transfers.next_handover_s(self.known.now()))
                handles.append(self._events.get(timeout=max(wait_s, 0.001)))
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
            link.send(StatusAnswer(document=json.dumps(self.status())))
            return
        host = self.known.hosts.get(link.host)
        if host is None or host.link is not link:
            return
        match message:
            case UpdateNotice():
                self._hear(message.update, link.host)
            case ModelWanted():
                training, reading = message.training, message.reading
                self._models.want(link.host, message.at_least, training=training, reading=reading)
            case ComputingNotice():
                self._admission.note(link.host, message.versions, message.delivered)
            case ReductionNotice() if message.group is not None:
                self._groups.take_part(link.host, message)
            case ReductionNotice():
                self._reductions.join(link.host, message)
            case MembershipNotice():
                self._groups.hear(link.host, message)
            case StateNotice():
                self._groups.give_state(link.host, message)
            case ArrivalNotice():
                self._arrive(host, message)
            case FailureNotice():
                log.info("pace.fabric_transfer_failed", transfer=message.transfer, reason=message.reason)
                self.known.transfers.fail(message.transfer)
            case CommitNotice():
                self._committed(link.host, message)
            case SnapshotNotice():
                taken = link.host, message.key, message.version, message.size_bytes
                if not self._models.taken(*taken):
                    self.replica.taken(*taken)
            case _:
                log.warning("pace.fabric_message_ignored", host=link.host, kind=message.kind)

    # Hosts come and go.

    def _register(self, link: FabricLink, message: HostRegistration) -> None:
        refusal = self._holders.refusal(message)
        if refusal is not None:
            link.send(RefusalOrder(reason=refusal))
            return
        if message.host in self.known.hosts:
            self._lose(self.known.hosts[message.host].link, "it has called again")
        link.host = message.host
        self.known.hosts[message.host] = KnownHost(link, message, message.part)
        link.send(
            WelcomeOrder(
                progress_s=self.options.tick_s / 2,
                momentum=self.options.momentum,
                network_state=self.known.state.name,
                merge=self.options.merge,
            )
        )
        if message.part != "worker":
            self._holders.join(message)
        for held in message.updates:
            self._hear(held, message.host)
        log.info("pace.fabric_host", host=message.host, part=message.part, version=message.version)

    def _lose(self, link: FabricLink, reason: str) -> None:
        self._links.discard(link)
        link.close()
        host = self.known.hosts.get(link.host)
        if host is None or host.link is not link:
            return
        del self.known.hosts[link.host]
        log.warning("pace.fabric_host_lost", host=link.host, part=host.part, reason=reason)
        self._tickets.lose(link.host)
        self.known.transfers.lose(link.host)
        self._reductions.lose(link.host)
        self._groups.lose(link.host)
        self._commits.lose(link.host)
        if host.part == "server":
            self._holders.lose_server()
        elif host.part == "replica":
            self.replica.leave()
        else:
            self.replica.lose(link.host)
        self._admission.lose(link.host)
        self._models.lose(link.host)

    # What hosts say.

    def _hear(self, held: HeldUpdate, host: str) -> None:
        self._tickets.hear(held, host, under_way=self._commits.has(held.id))

    def _arrive(self, host: KnownHost, notice: ArrivalNotice) -> None:
        now = self.known.now()
        seen = notice.size_bytes, notice.recent_bytes, notice.seconds
        self.known.transfers.hear(notice.transfer, *seen, now)
        if notice.part:
            return
        transfer = self.known.transfers.arrive(notice.transfer)
        if transfer is not None and transfer.purpose == PROBE:
            return
        host.received_bytes += notice.size_bytes
        host.received_wire_bytes += notice.wire_bytes
        if transfer is None or transfer.began_s is None:
            return
        self._transfer_log.write(transfer, notice, now, self.known.state.name)

    def _committed(self, host: str, notice: CommitNotice) -> None:
        if self._commits.answer(notice):
            return
        if host == self.known.holder("replica") or host == self._holders.promoted:
            self.replica.applied_by_replica(notice.number, notice.version, notice.history_norm)

    # What is done after everything that happens.

    def _go_on(self) -> None:
        servers, may_commit = self._holders.servers(), self._holders.may_commit()
        if servers and may_commit:
            self._planner.plan(servers)
            self.known.transfers.pump(self.known.now())
            blocked = self._commits.order_what_may(servers)
            idle = not self._tickets.pending and not len(self._commits) and self._commits.answered
            self.replica.feed(blocked=blocked, idle=idle)
            if not self._tickets.replaying:
                waiting = [update.held.version for update in self._tickets.pending.values()]
                planned = self._commits.planned_version
                self._models.plan(servers, self._commits.version, planned, waiting)
        self._groups.go_on()
        self.known.probe(self.options.probe_s)
        self.known.transfers.pump(self.known.now())

    def status(self) -> dict[str, Any]:
        """Return what people want to know: a document of ``pace fabric status``."""
        return {
            "network_state": self.known.state.name,
            "server": self.known.holder("server"),
            "servers": list(self.known.servers()),
            "replica": self.known.holder("replica"),
            "replica_in_step": self.replica.in_step,
            "promoted": self._holders.promoted is not None,
            "version": self._commits.version,
            "pending": len(self._tickets.pending),
            "planned": len(self._commits),
            "transfers": len(self.known.transfers),
            "commits": self._commits.commits,
            "committed": self._commits.committed,
            "dropped": self._tickets.dropped,
            "broken_groups": self._commits.broken,
            "planned_server_bytes": self._planner.planned_server_bytes,
            "greatest_lead": self.replica.greatest_lead,
            "replica_applied": self.replica.applied,
            "groups": self._groups.status(),
            "hosts": {
                name: {
                    "part": host.part,
                    "received_bytes": host.received_bytes,
                    "received_wire_bytes": host.received_wire_bytes,
                }
                for name, host in self.known.hosts.items()
            },
        }
