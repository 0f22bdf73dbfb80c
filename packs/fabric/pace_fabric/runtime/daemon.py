"""A host of the fabric: keeps its workers' updates, sends and adds what the scheduler orders, holds a model.

One thread handles everything that happens, in order; threads of links only read and write.
"""

import queue
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial

from pace.errors import InvalidUse
from pace.runtime.closing import Closing
from pace.runtime.event_log import log
from pace.wire.addresses import ServerAddress
from pace_fabric.runtime.byte_store import PROBE, ByteStore
from pace_fabric.runtime.connection import FabricLink, Incoming, connect, listen, own_address_towards
from pace_fabric.runtime.held_model import HeldModel
from pace_fabric.runtime.local_members import LocalMembers
from pace_fabric.runtime.local_workers import LocalWorkers
from pace_fabric.runtime.messages import (
    AdditionOrder,
    AdmissionOrder,
    AdoptionOrder,
    ArrivalNotice,
    CommitNotice,
    CommitOrder,
    DeliveryOrder,
    ForgetOrder,
    HostRegistration,
    Message,
    PromotionOrder,
    RateOrder,
    RefusalOrder,
    ReleaseOrder,
    SnapshotNotice,
    SnapshotOrder,
    StateOrder,
    TicketOrder,
    TransferOrder,
    WelcomeOrder,
)
from pace_fabric.runtime.peer_links import PeerLinks
from pace_fabric.runtime.scheduler_call import CONNECT_S, SchedulerCall

# Pushes wait this long for a scheduler that is gone.
_PATIENCE_S = 600.0


class HostDaemon(Closing):
    """Running once built.

    Parameters
    ----------
    name
        Name of the host in the network document.
    scheduler
        Where the scheduler listens.
    bind
        Where workers of this host and other hosts' daemons call.
    advertise
        Under which address other hosts reach this one. Unless given, where it listens; if that is
        everywhere, its address on the way to the scheduler.
    model
        What a server or replica holds; None on other hosts.
    part
        Whether the model is the server's or a replica's.
    shard
        Which part of the model a server holds, of how many.
    """

    def __init__(
        self,
        name: str,
        scheduler: ServerAddress,
        *,
        bind: tuple[str, int] = ("127.0.0.1", 0),
        advertise: str | None = None,
        model: HeldModel | None = None,
        replica: bool = False,
        shard: tuple[int, int] = (0, 1),
        token: str | None = None,
        serving: ssl.SSLContext | None = None,
        trusting: ssl.SSLContext | None = None,
        silence_s: float = 20.0,
    ) -> None:
        self.name, self.model = name, model
        self._replica, self._shard = replica, shard
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._callers: set[FabricLink] = set()
        self._closed = threading.Event()
        self.refused: str | None = None
        self._progress_s = 0.1
        dial = partial(connect, token=token, silence_s=silence_s, within_s=CONNECT_S, ssl_context=trusting)
        self._scheduler = SchedulerCall(
            name,
            partial(dial, scheduler),
            self._post,
            register=self._registration,
            on_registration=self._begin_again,
            obey=self._obey,
            on_absence=self._do_without,
            patience_s=_PATIENCE_S,
        )
        self._store = ByteStore()
        self._workers = LocalWorkers(name, self._store, self._scheduler.tell)
        self._members = LocalMembers(name, self._store, self._scheduler.tell)
        self._peers = PeerLinks(name, self._store, dial, self._scheduler.tell, self._post)
        self._listener = listen(bind, self._accept, token=token, ssl_context=serving)
        self.host, self.port = self._listener.host, self._listener.port
        everywhere = self.host in ("0.0.0.0", "::")  # where it listens, but nobody reaches it under that name
        self._advertise = advertise or (own_address_towards(scheduler) if everywhere else self.host)
        self._thread = threading.Thread(target=self._run, name=f"pace_fabric.{name}", daemon=True)
        self._thread.start()
        self._scheduler.start()

    @property
    def address(self) -> str:
        """Address at which it listens, as HOST:PORT."""
        return self._listener.address

    def close(self) -> None:
        """Leave the fabric at once; updates that are not committed fail. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._scheduler.stop()
        self._listener.stop()
        self._events.put(None)
        self._thread.join(5.0)
        for link in list(self._callers):
            link.close()
        self._peers.close()
        self._scheduler.close()
        if self.model is not None:
            self.model.close()

    # Threads that only pass on what happens.

    def _accept(self, link: FabricLink) -> None:
        self._callers.add(link)
        self._events.put(lambda: self._take_in(link))
        if self._closed.is_set():  # nobody takes it in any more
            link.close()

    def _post(self, handle: Callable[[], None]) -> None:
        if not self._closed.is_set():
            self._events.put(handle)

    def _run(self) -> None:
        while True:
            handle = self._events.get()
            if handle is None or self._closed.is_set():
                return
            try:
                handle()
            except Exception as error:  # one bad event must not end the host
                log.exception("pace.fabric_daemon_failed", host=self.name, reason=str(error))

    # The scheduler.

    def _registration(self) -> HostRegistration:
        held = self.model
        return HostRegistration(
            host=self.name,
            address=self._advertise,
            port=self.port,
            part="worker" if held is None else "replica" if self._replica else "server",
            version=0 if held is None else held.version,
            model_bytes=0 if held is None else held.weights.nbytes,
            history_norm=0.0 if held is None else held.history_norm,
            digest="" if held is None else held.digest,
            updates=tuple(self._workers.updates.values()),
            recent=() if held is None else tuple(held.recent.items()),
            shard=self._shard[0],
            shards=self._shard[1],
        )

    def _begin_again(self) -> None:
        """A scheduler has been told what is here: it orders everything else anew."""
        self._store.keep_only_owned()
        self._workers.repeat()
        self._members.repeat()

    def _do_without(self, reason: str) -> None:
        """Let workers know that there is no scheduler."""
        self._workers.fail_all(reason)
        self._members.fail_all(reason)

    def _obey(self, order: Message) -> None:
        match order:
            case TransferOrder():
                self._peers.send(order)
            case RateOrder():
                self._peers.set_rate(order)
            case AdditionOrder():
                self._store.add(order)
            case CommitOrder():
                self._commit(order)
            case SnapshotOrder():
                self._take_snapshot(order)
            case AdoptionOrder():
                self._adopt(order)
            case PromotionOrder():
                assert self.model is not None
                self._replica = False
                self.model.promote()
            case DeliveryOrder():
                self._deliver(order)
            case AdmissionOrder():
                self._members.admit(order)
            case StateOrder():
                self._members.ask_state(order)
            case ForgetOrder():
                for key in order.keys:
                    self._store.consume(key)
            case TicketOrder():
                self._workers.end_ticket(order)
            case ReleaseOrder():
                for update in order.updates:
                    self._workers.release(update)
            case WelcomeOrder():
                self._progress_s = order.progress_s
                if self.model is not None:
                    self.model.begin(order.momentum, order.network_state)
            case RefusalOrder():
                self._refuse(order)
            case _:
                log.warning("pace.fabric_message_ignored", host=self.name, kind=order.kind)

    def _refuse(self, order: RefusalOrder) -> None:
        if order.round is None:
            self.refused = order.reason
            log.error("pace.fabric_host_refused", host=self.name, reason=order.reason)
            return
        self._workers.fail_round(order)
        self._members.refuse(order)

    def _deliver(self, order: DeliveryOrder) -> None:
        kept = self._store.get(order.key)
        if kept is not None and order.round is not None:
            self._members.deliver(order.round, order.key, kept)
        elif order.round is not None:
            reason = f"{self.name} does not have the mean of round {order.round}"
            self._members.refuse(RefusalOrder(round=order.round, reason=reason, missed=True))
        self._workers.deliver(order)

    # The model.

    def _commit(self, order: CommitOrder) -> None:
        assert self.model is not None
        expired = tuple(member.id for member in order.members)
        if order.key in self._store:
            try:
                expired = self.model.commit(order, self._store.vector(order.key))
            except InvalidUse as error:
                log.error("pace.fabric_commit_refused", key=order.key, reason=str(error))
        self._store.consume(order.key)
        self._scheduler.tell(
            CommitNotice(
                number=order.number,
                version=self.model.version,
                history_norm=self.model.history_norm,
                expired=expired,
            )
        )

    def _take_snapshot(self, order: SnapshotOrder) -> None:
        assert self.model is not None
        data, form = self.model.snapshot(whole=order.whole)
        self._store.put(order.key, data, self.model.version, form)
        self._scheduler.tell(SnapshotNotice(key=order.key, version=self.model.version, size_bytes=len(data)))

    def _adopt(self, order: AdoptionOrder) -> None:
        assert self.model is not None
        kept = self._store.get(order.key)
        if kept is not None:
            self.model.adopt(kept.data)
            self._store.consume(order.key)

    # Workers of this host, and what arrives from other hosts.

    def _take_in(self, link: FabricLink) -> None:
        link.start(
            lambda link, message: self._post(lambda: self._answer(link, message)),
            lambda link, _reason: self._post(lambda: self._forget_caller(link)),
            lambda link, incoming: self._arrive(link, incoming),
            lambda _link, incoming: self._progress(incoming),
        )

    def _answer(self, link: FabricLink, message: Message) -> None:
        if not self._members.answer(link, message):
            self._workers.answer(link, message)

    def _forget_caller(self, link: FabricLink) -> None:
        self._callers.discard(link)
        self._workers.forget(link)
        self._members.forget(link)
        link.close()

    def _progress(self, incoming: Incoming) -> None:
        """Report from time to time how much of a transfer from another host has arrived, but not its end."""
        if incoming.intro.host == "-" or not incoming.missing:
            return
        if time.monotonic() - incoming.noted_s >= self._progress_s:
            recent_bytes, seconds = incoming.recent()
            notice = ArrivalNotice(
                transfer=incoming.intro.transfer,
                size_bytes=incoming.arrived_bytes,
                wire_bytes=incoming.wire_bytes,
                recent_bytes=recent_bytes,
                seconds=seconds,
                part=True,
            )
            self._post(lambda: self._scheduler.tell(notice))

    def _arrive(self, link: FabricLink, incoming: Incoming) -> None:
        recent_bytes, seconds = incoming.recent()
        self._post(lambda: self._keep(link, incoming, recent_bytes, seconds))

    def _keep(self, link: FabricLink, incoming: Incoming, recent_bytes: int, seconds: float) -> None:
        intro = incoming.intro
        if self._members.accept(link, incoming) or self._workers.accept(link, incoming):
            return
        if intro.key != PROBE:
            self._store.put(intro.key, incoming.data, intro.version, intro.form)
        self._scheduler.tell(
            ArrivalNotice(
                transfer=intro.transfer,
                size_bytes=intro.size_bytes,
                wire_bytes=incoming.wire_bytes,
                recent_bytes=recent_bytes,
                seconds=seconds,
            )
        )
