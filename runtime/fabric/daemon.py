"""A host of the fabric: keeps its workers' updates, sends and adds what the scheduler orders, holds a model.

One thread handles everything that happens, in order; threads of links only read and write.
"""

import queue
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType

import numpy as np

from pace.errors import CommunicationFailed, InvalidUse
from pace.runtime.addresses import ServerAddress
from pace.runtime.event_log import log
from pace.runtime.fabric.commit_log import Vector, add_scaled
from pace.runtime.fabric.connection import FabricLink, Incoming, Listener, connect
from pace.runtime.fabric.held_model import HeldModel
from pace.runtime.fabric.messages import (
    AdditionOrder,
    AdoptionOrder,
    ArrivalNotice,
    CommitNotice,
    CommitOrder,
    DeliveryOrder,
    FailureNotice,
    ForgetOrder,
    HeldUpdate,
    HostRegistration,
    Message,
    ModelCall,
    ModelWanted,
    PromotionOrder,
    PushCall,
    RateOrder,
    ReductionNotice,
    RefusalOrder,
    ReleaseOrder,
    SnapshotNotice,
    SnapshotOrder,
    TicketOrder,
    TransferIntro,
    TransferOrder,
    UpdateNotice,
    WelcomeOrder,
)

_RETRY_S = 0.2
_CONNECT_S = 5.0


@dataclass(slots=True)
class _Stored:
    """Bytes under a key; `copies` counts how often they arrived, and `owned` are this host's updates."""

    data: bytearray
    version: int = 0
    owned: bool = False
    copies: int = 1


@dataclass(slots=True)
class _Peer:
    """The link to another host, and the transfers that were last put on it."""

    link: FabricLink
    sent: deque[int] = field(default_factory=lambda: deque(maxlen=256))


@dataclass(slots=True)
class _Push:
    call: PushCall
    link: FabricLink


class HostDaemon:
    """Running once built.

    Parameters
    ----------
    name
        Of the host, as the network document calls it.
    scheduler
        Where the scheduler listens.
    bind
        Where workers of this host and other hosts' daemons call.
    advertise
        Under which address other hosts reach this one; where it listens unless given.
    model
        What a server or replica holds; None on other hosts.
    part
        Whether the model is the server's or a replica's.
    patience_s
        How long pushes wait for a scheduler that is gone.
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
        token: str | None = None,
        serving: ssl.SSLContext | None = None,
        trusting: ssl.SSLContext | None = None,
        silence_s: float = 20.0,
        patience_s: float = 600.0,
    ) -> None:
        self.name, self.model = name, model
        self._replica = replica
        self._scheduler_address = scheduler
        self._token, self._trusting = token, trusting
        self._silence_s, self._patience_s = silence_s, patience_s
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._store: dict[str, _Stored] = {}
        self._updates: dict[str, HeldUpdate] = {}
        self._pushes: dict[str, _Push] = {}
        self._expected: dict[tuple[FabricLink, str], PushCall] = {}
        self._getters: list[tuple[FabricLink, ModelCall]] = []
        self._peers: dict[str, _Peer] = {}
        self._callers: set[FabricLink] = set()
        self._scheduler: FabricLink | None = None
        self._lost_at = time.monotonic()
        self._registered = threading.Event()
        self._closed = threading.Event()
        self.refused: str | None = None
        self._listener = Listener(*bind, self._accept, token=token, ssl_context=serving)
        self.host, self.port = self._listener.host, self._listener.port
        self._advertise = advertise or self.host
        self._thread = threading.Thread(target=self._run, name=f"pace.fabric.{name}", daemon=True)
        self._thread.start()
        self._caller = threading.Thread(target=self._call_scheduler, name="pace.fabric.call", daemon=True)
        self._caller.start()

    def __enter__(self) -> "HostDaemon":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where it listens, as HOST:PORT."""
        return self._listener.address

    def wait_registered(self, timeout_s: float) -> bool:
        """Wait until the scheduler knows this host; return whether it does."""
        return self._registered.wait(timeout_s)

    def close(self) -> None:
        """Leave the fabric at once; updates that are not committed fail. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._listener.close()
        self._events.put(None)
        self._thread.join(5.0)
        self._caller.join(2 * _CONNECT_S)
        links = [*self._callers, *(peer.link for peer in self._peers.values())]
        for link in links if self._scheduler is None else [*links, self._scheduler]:
            link.close()
        if self.model is not None:
            self.model.close()

    # Threads that only pass on what happens.

    def _accept(self, link: FabricLink) -> None:
        self._events.put(lambda: self._take_in(link))

    def _post(self, handle: Callable[[], None]) -> None:
        if not self._closed.is_set():
            self._events.put(handle)

    def _call_scheduler(self) -> None:
        while not self._closed.is_set():
            try:
                link = connect(
                    self._scheduler_address,
                    token=self._token,
                    silence_s=self._silence_s,
                    within_s=_CONNECT_S,
                    ssl_context=self._trusting,
                )
            except CommunicationFailed as error:
                self._post(partial(self._without_scheduler, str(error)))
                self._closed.wait(_RETRY_S)
                continue
            ended = self._follow(link)
            while not ended.wait(0.2) and not self._closed.is_set():
                pass
            if self._closed.is_set():
                link.close()
                return
            self._closed.wait(_RETRY_S)

    def _follow(self, link: FabricLink) -> threading.Event:
        ended = threading.Event()

        def end(link: FabricLink, reason: str) -> None:
            self._post(lambda: self._lose_scheduler(link, reason))
            ended.set()

        link.start(lambda _link, message: self._post(lambda: self._obey(message)), end)
        self._post(lambda: self._register(link))
        return ended

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

    def _register(self, link: FabricLink) -> None:
        self._scheduler = link
        held = self.model
        link.send(
            HostRegistration(
                host=self.name,
                address=self._advertise,
                port=self.port,
                part="worker" if held is None else "replica" if self._replica else "server",
                version=0 if held is None else held.version,
                model_bytes=0 if held is None else held.weights.nbytes,
                history_norm=0.0 if held is None else held.history_norm,
                digest="" if held is None else held.digest,
                updates=tuple(self._updates.values()),
                recent=() if held is None else tuple(held.recent.items()),
            )
        )
        for stored in [key for key, each in self._store.items() if not each.owned]:
            del self._store[stored]
        for push in self._pushes.values():
            if push.call.round is not None:
                self._notify_reduction(push.call)
        self._want()

    def _lose_scheduler(self, link: FabricLink, reason: str) -> None:
        if self._scheduler is link:
            self._scheduler = None
            self._registered.clear()
            self._lost_at = time.monotonic()
            log.warning("pace.fabric_scheduler_lost", host=self.name, reason=reason)
        link.close()

    def _without_scheduler(self, reason: str) -> None:
        if time.monotonic() - self._lost_at < self._patience_s:
            return
        for update in [each for each in self._pushes if self._pushes[each].call.update.id == each]:
            self._end_ticket(TicketOrder(update=update, outcome="failed", reason=reason, version=None))

    def _tell(self, message: Message) -> None:
        if self._scheduler is not None:
            self._scheduler.send(message)

    def _obey(self, order: Message) -> None:
        match order:
            case TransferOrder():
                self._send(order)
            case RateOrder():
                if order.host in self._peers:
                    self._peers[order.host].link.set_rate(order.rate)
            case AdditionOrder():
                self._add(order)
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
            case ForgetOrder():
                for key in order.keys:
                    self._consume(key)
            case TicketOrder():
                self._end_ticket(order)
            case ReleaseOrder():
                for update in order.updates:
                    self._release(update)
            case WelcomeOrder():
                self._registered.set()
                if self.model is not None:
                    self.model.begin(order.momentum, order.network_state)
            case RefusalOrder():
                self._refuse(order)
            case _:
                log.warning("pace.fabric_message_ignored", host=self.name, kind=order.kind)

    def _refuse(self, order: RefusalOrder) -> None:
        if order.round is None:
            self.refused = order.reason
            self._registered.set()
            log.error("pace.fabric_host_refused", host=self.name, reason=order.reason)
            return
        for update, push in list(self._pushes.items()):
            if push.call.round == order.round:
                self._end_ticket(TicketOrder(update=update, outcome="failed", reason=order.reason))

    # What is stored, and what goes from here to other hosts.

    def _vector(self, key: str) -> Vector:
        return np.frombuffer(self._store[key].data, dtype=np.float32)

    def _consume(self, key: str) -> None:
        stored = self._store.get(key)
        if stored is not None and not stored.owned:
            stored.copies -= 1
            if stored.copies <= 0:
                del self._store[key]

    def _put(self, key: str, data: bytearray, version: int = 0) -> None:
        if key in self._store:
            self._store[key].copies += 1
        else:
            self._store[key] = _Stored(data, version)

    def _add(self, order: AdditionOrder) -> None:
        if any(part not in self._store for part in order.parts):
            return  # the transfer of the sum will say that there is none
        parts = [self._vector(part) for part in order.parts]
        if len({len(part) for part in parts}) == 1:
            self._put(order.key, bytearray(add_scaled(parts, order.factors).tobytes()))
        del parts
        for part in order.parts:
            self._consume(part)

    def _send(self, order: TransferOrder) -> None:
        stored = self._store.get(order.key)
        if stored is None:
            self._tell(FailureNotice(transfer=order.transfer, reason=f"{self.name} has no {order.key}"))
            return
        peer = self._peers.get(order.host)
        if peer is None or peer.link.over:
            # Connecting takes a round trip at most: whoever does not answer at once is as good as gone.
            try:
                link = connect(
                    ServerAddress(host=order.address, port=order.port, name=f"host {order.host}"),
                    token=self._token,
                    silence_s=self._silence_s,
                    within_s=_CONNECT_S,
                    ssl_context=self._trusting,
                )
            except CommunicationFailed as error:
                self._tell(FailureNotice(transfer=order.transfer, reason=str(error)))
                return
            link.host = order.host
            link.start(
                lambda _link, _message: None, lambda link, why: self._post(lambda: self._lose(link, why))
            )
            peer = self._peers[order.host] = _Peer(link)
        peer.sent.append(order.transfer)
        peer.link.set_rate(order.rate)
        intro = TransferIntro(
            transfer=order.transfer,
            key=order.key,
            size_bytes=len(stored.data),
            version=stored.version,
            host=self.name,
        )
        peer.link.send_tensor(intro, memoryview(stored.data))
        if order.once:
            self._consume(order.key)

    def _lose(self, link: FabricLink, reason: str) -> None:
        peer = self._peers.get(link.host)
        if peer is not None and peer.link is link:
            del self._peers[link.host]
            for transfer in peer.sent:
                self._tell(FailureNotice(transfer=transfer, reason=reason))
        link.close()

    # The model.

    def _commit(self, order: CommitOrder) -> None:
        assert self.model is not None
        expired = tuple(member.id for member in order.members)
        if order.key in self._store:
            try:
                expired = self.model.commit(order, self._vector(order.key))
            except InvalidUse as error:
                log.error("pace.fabric_commit_refused", key=order.key, reason=str(error))
        self._consume(order.key)
        self._tell(
            CommitNotice(
                number=order.number,
                version=self.model.version,
                history_norm=self.model.history_norm,
                expired=expired,
            )
        )

    def _take_snapshot(self, order: SnapshotOrder) -> None:
        assert self.model is not None
        self._put(order.key, self.model.snapshot(whole=order.whole), self.model.version)
        self._tell(SnapshotNotice(key=order.key, version=self.model.version))

    def _adopt(self, order: AdoptionOrder) -> None:
        assert self.model is not None
        if order.key in self._store:
            self.model.adopt(self._store[order.key].data)
            self._consume(order.key)

    # Workers of this host, and what arrives from other hosts.

    def _take_in(self, link: FabricLink) -> None:
        self._callers = {each for each in self._callers if not each.over} | {link}
        link.start(
            lambda link, message: self._post(lambda: self._answer(link, message)),
            lambda link, _reason: self._post(lambda: self._forget_caller(link)),
            lambda link, incoming: self._arrive(link, incoming),
        )

    def _forget_caller(self, link: FabricLink) -> None:
        self._callers.discard(link)
        self._getters = [each for each in self._getters if each[0] is not link]
        self._expected = {at: call for at, call in self._expected.items() if at[0] is not link}
        link.close()

    def _answer(self, link: FabricLink, message: Message) -> None:
        match message:
            case PushCall():
                self._expected[link, f"u/{message.update.id}"] = message
            case ModelCall():
                self._getters.append((link, message))
                self._want()
            case _:
                log.warning("pace.fabric_message_ignored", host=self.name, kind=message.kind)

    def _arrive(self, link: FabricLink, incoming: Incoming) -> None:
        seconds = time.monotonic() - incoming.began
        self._post(lambda: self._keep(link, incoming, seconds))

    def _keep(self, link: FabricLink, incoming: Incoming, seconds: float) -> None:
        intro = incoming.intro
        call = self._expected.pop((link, intro.key), None)
        if call is not None:
            self._accept_push(link, call, incoming)
            return
        self._put(intro.key, incoming.data, intro.version)
        self._tell(
            ArrivalNotice(
                transfer=intro.transfer,
                size_bytes=intro.size_bytes,
                wire_bytes=incoming.wire_bytes,
                seconds=seconds,
            )
        )

    def _accept_push(self, link: FabricLink, call: PushCall, incoming: Incoming) -> None:
        update = call.update
        if update.id in self._updates or update.id in self._pushes or len(incoming.data) != update.size_bytes:
            link.send(TicketOrder(update=update.id, outcome="failed", reason="an update of this id is here"))
            return
        self._store[f"u/{update.id}"] = _Stored(incoming.data, update.version, owned=True)
        self._pushes[update.id] = _Push(call, link)
        if call.round is not None:
            self._notify_reduction(call)
            return
        self._updates[update.id] = update
        self._tell(UpdateNotice(update=update))

    def _notify_reduction(self, call: PushCall) -> None:
        assert call.round is not None
        self._tell(ReductionNotice(round=call.round, members=call.members, update=call.update))

    def _want(self) -> None:
        if self._getters:
            self._tell(ModelWanted(at_least=min(call.at_least for _, call in self._getters)))

    def _deliver(self, order: DeliveryOrder) -> None:
        stored = self._store.get(order.key)
        if stored is None:
            return
        if order.round is not None:
            for update, push in list(self._pushes.items()):
                if push.call.round == order.round:
                    self._hand_over(push.link, push.call.number, order.key, stored)
                    del self._pushes[update]
                    self._release(update)
        else:
            for link, call in self._getters:
                if call.at_least <= order.version:
                    self._hand_over(link, call.number, order.key, stored)
            self._getters = [each for each in self._getters if each[1].at_least > order.version]
            self._want()

    def _hand_over(self, link: FabricLink, number: int, key: str, stored: _Stored) -> None:
        size, version = len(stored.data), stored.version
        intro = TransferIntro(transfer=number, key=key, size_bytes=size, version=version, host=self.name)
        link.send_tensor(intro, memoryview(stored.data))

    def _end_ticket(self, order: TicketOrder) -> None:
        push = self._pushes.pop(order.update, None)
        if push is not None:
            push.link.send(order)
        held = self._updates.get(order.update)
        if held is not None and order.outcome == "committed":
            self._updates[order.update] = held.model_copy(update={"committed": True})
        else:
            self._release(order.update)

    def _release(self, update: str) -> None:
        self._updates.pop(update, None)
        self._store.pop(f"u/{update}", None)


def load_model(path: Path) -> Vector:
    """Return the float32 model of a .npy file as one row.

    Raises
    ------
    InvalidUse
        When it holds none.
    """
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InvalidUse(f"{path}: no model can be read: {error}") from error
    if loaded.dtype != np.float32 or not loaded.size:
        raise InvalidUse(f"{path}: {loaded.shape} {loaded.dtype}; float32 numbers are needed")
    return np.ascontiguousarray(loaded).reshape(-1)
