"""One sender's weights to many hosts, each of which hands every block on as it arrives.

Hosts form a chain, the fastest first: the sender's link carries the weights once, however many hosts there
are, and no fast host waits for a slow one. A host that fails is left out, and those behind it are served
again.
"""

import hashlib
import queue
import secrets
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from pace.errors import CommunicationFailed, InvalidUse
from pace.runtime.addresses import ServerAddress
from pace.runtime.event_log import log
from pace.runtime.fabric.connection import FabricLink, Incoming, Listener, connect
from pace.runtime.fabric.messages import Message, RelayNotice, RelayOrder, TransferIntro

_TRANSFER = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedWeights:
    """Weights that have arrived and have the sender's hash."""

    version: int
    data: bytearray


class _Relay:
    """One distribution at one host: what has arrived, and what was handed on."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.order: RelayOrder | None = None
        self.asked: FabricLink | None = None
        self.source: FabricLink | None = None
        self.incoming: Incoming | None = None
        self.next: FabricLink | None = None
        self.handed_on = 0
        self.arrived = False
        self.over = False


class WeightReceiver:
    """Listens for weights from the start.

    Parameters
    ----------
    bind
        Where the sender and the host before this one call.
    """

    def __init__(
        self,
        bind: tuple[str, int] = ("127.0.0.1", 0),
        *,
        token: str | None = None,
        serving: ssl.SSLContext | None = None,
        trusting: ssl.SSLContext | None = None,
        most_bytes: int = 1 << 40,
        silence_s: float = 20.0,
    ) -> None:
        self._token, self._trusting = token, trusting
        self._most_bytes, self._silence_s = most_bytes, silence_s
        self._lock = threading.RLock()
        self._relays: dict[str, _Relay] = {}
        self._links: set[FabricLink] = set()
        self._received: queue.SimpleQueue[ReceivedWeights] = queue.SimpleQueue()
        self._listener = Listener(*bind, self._accept, token=token, ssl_context=serving)
        self.host, self.port = self._listener.host, self._listener.port

    def __enter__(self) -> "WeightReceiver":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where it listens, as HOST:PORT."""
        return self._listener.address

    def receive(self, timeout_s: float | None = None) -> ReceivedWeights:
        """Return the next weights that have arrived.

        Raises
        ------
        CommunicationFailed
            When none arrive in time.
        """
        try:
            return self._received.get(timeout=timeout_s)
        except queue.Empty:
            raise CommunicationFailed(f"no weights arrived within {timeout_s:g} s") from None

    def finish(self, within_s: float = 600.0) -> None:
        """Write what is still to be handed on and said."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.finish(within_s)

    def close(self) -> None:
        """Stop listening and end all connections."""
        self._listener.close()
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()

    def _accept(self, link: FabricLink) -> None:
        with self._lock:
            self._links.add(link)
        link.start(self._hear, self._lose, self._arrive, self._forward)

    def _relay(self, key: str) -> _Relay:
        return self._relays.setdefault(key, _Relay(key))

    def _hear(self, link: FabricLink, message: Message) -> None:
        if not isinstance(message, RelayOrder):
            return
        following: FabricLink | None = None
        reason = ""
        if message.size_bytes > self._most_bytes:
            reason = f"weights of {message.size_bytes:,} bytes; at most {self._most_bytes:,} are allowed"
        elif message.host is not None and message.address is not None:
            place = ServerAddress(host=message.address, port=message.port, name=f"host {message.host}")
            try:
                following = connect(
                    place,
                    token=self._token,
                    silence_s=self._silence_s,
                    within_s=self._silence_s,
                    ssl_context=self._trusting,
                )
                following.start(lambda _link, _message: None, self._lose)
            except CommunicationFailed as error:
                log.warning("pace.weights_not_handed_on", reason=str(error))
        with self._lock:
            for old in [each for each in self._relays.values() if each.asked is link]:
                del self._relays[old.key]  # the sender has given it up
            relay = self._relay(message.key)
            relay.order, relay.asked, relay.next = message, link, following
            if following is not None:
                self._links.add(following)
                following.send(
                    TransferIntro(transfer=_TRANSFER, key=message.key, size_bytes=message.size_bytes)
                )
            if reason:
                self._end(relay, reason)
            else:
                self._hand_on(relay)

    def _forward(self, link: FabricLink, incoming: Incoming) -> None:
        with self._lock:
            relay = self._relay(incoming.intro.key)
            relay.incoming, relay.source = incoming, link
            self._hand_on(relay)

    def _arrive(self, _link: FabricLink, incoming: Incoming) -> None:
        with self._lock:
            relay = self._relay(incoming.intro.key)
            relay.incoming, relay.arrived = incoming, True
            self._hand_on(relay)

    def _hand_on(self, relay: _Relay) -> None:
        incoming = relay.incoming
        if relay.order is None or incoming is None or relay.over:
            return
        here = len(incoming.data) - incoming.missing
        if relay.next is not None and here > relay.handed_on:
            relay.next.send_part(_TRANSFER, memoryview(incoming.data), relay.handed_on, here)
            relay.handed_on = here
        if relay.arrived:
            if hashlib.sha256(incoming.data).hexdigest() == relay.order.sha256:
                self._end(relay, "")
                self._received.put(ReceivedWeights(version=relay.order.version, data=incoming.data))
            else:
                self._end(relay, "the weights have another hash than the sender's")

    def _end(self, relay: _Relay, reason: str) -> None:
        incoming = relay.incoming
        relay.over = True
        del self._relays[relay.key]
        if relay.next is not None:
            threading.Thread(target=self._say_goodbye, args=(relay.next,), daemon=True).start()
        if relay.asked is not None:
            relay.asked.send(
                RelayNotice(
                    key=relay.key,
                    received_bytes=0 if incoming is None else len(incoming.data) - incoming.missing,
                    sent_bytes=relay.handed_on,
                    seconds=0.0 if incoming is None else time.monotonic() - incoming.began,
                    reason=reason,
                )
            )

    def _say_goodbye(self, link: FabricLink) -> None:
        link.finish(within_s=600.0)
        with self._lock:
            self._links.discard(link)

    def _lose(self, link: FabricLink, reason: str) -> None:
        with self._lock:
            self._links.discard(link)
            for relay in [each for each in self._relays.values() if each.asked is link]:
                del self._relays[relay.key]  # the sender is gone
            for relay in [each for each in self._relays.values() if each.next is link]:
                relay.next = None
            for relay in [each for each in self._relays.values() if each.source is link]:
                if relay.order is None and not relay.arrived:  # else the order may still come
                    del self._relays[relay.key]
        log.debug("pace.weights_link_ended", reason=reason)
        threading.Thread(target=link.close, daemon=True).start()


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightDelivery:
    """How weights reached hosts.

    Attributes
    ----------
    seconds
        Until the last host had them.
    sent_bytes
        What the sender sent, and each host.
    received_bytes
        By each host.
    failed
        Hosts that do not have them, and why.
    """

    seconds: float
    order: tuple[str, ...]
    sent_bytes: dict[str, int]
    received_bytes: dict[str, int]
    failed: dict[str, str]


class WeightSender:
    """Keeps connections to receivers, and learns which are fast.

    Parameters
    ----------
    receivers
        Where each listens; their names are those of the report.
    rates
        Bytes per second of each, where known: the order of the first chain.
    direct
        Serve every host from here instead: to compare.
    """

    SENDER = "sender"

    def __init__(
        self,
        receivers: Sequence[ServerAddress],
        *,
        rates: dict[str, float] | None = None,
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        silence_s: float = 20.0,
        within_s: float = 30.0,
        direct: bool = False,
    ) -> None:
        if not receivers or len({place.name for place in receivers}) < len(receivers):
            raise InvalidUse("receivers of different names are needed, at least one")
        self._token, self._ssl_context = token, ssl_context
        self._silence_s, self._within_s = silence_s, within_s
        self._places = {place.name: place for place in receivers}
        self._rates = dict(rates or {})
        self._direct = direct
        self._controls: dict[str, FabricLink] = {}
        self._notices: queue.SimpleQueue[tuple[str, RelayNotice]] = queue.SimpleQueue()

    def __enter__(self) -> "WeightSender":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all connections."""
        for link in self._controls.values():
            link.close()
        self._controls.clear()

    def distribute(
        self, data: bytes | bytearray | memoryview, version: int = 0, *, timeout_s: float = 3600.0
    ) -> WeightDelivery:
        """Bring weights to all receivers; those that fail are named in the report."""
        whole = memoryview(data).cast("B")
        digest = hashlib.sha256(whole).hexdigest()
        sent, received = dict.fromkeys([self.SENDER, *self._places], 0), dict.fromkeys(self._places, 0)
        failed: dict[str, str] = {}
        began = time.monotonic()
        left = sorted(self._places, key=lambda name: -self._rates.get(name, 0.0))
        first = tuple(left)
        while left:
            left = [name for name in left if self._reach(name, failed)]
            if not left:
                break
            had, gone = self._send_once(left, whole, digest, version, sent, began + timeout_s)
            for name, notice in had.items():
                received[name] += notice.received_bytes
                sent[name] += notice.sent_bytes
                if notice.seconds > 0:
                    self._rates[name] = notice.received_bytes / notice.seconds
            failed |= gone
            left = [name for name in left if name not in had and name not in gone]
        return WeightDelivery(
            seconds=time.monotonic() - began,
            order=first,
            sent_bytes=sent,
            received_bytes=received,
            failed=failed,
        )

    def _reach(self, name: str, failed: dict[str, str]) -> bool:
        link = self._controls.get(name)
        if link is not None and not link.over:
            return True
        try:
            link = self._connect(name)
        except CommunicationFailed as error:
            failed[name] = str(error)
            return False

        def hear(_link: FabricLink, message: Message) -> None:
            if isinstance(message, RelayNotice):
                self._notices.put((name, message))

        def end(_link: FabricLink, reason: str) -> None:
            self._notices.put((name, RelayNotice(key="-", reason=reason)))

        link.start(hear, end)
        self._controls[name] = link
        return True

    def _connect(self, name: str) -> FabricLink:
        return connect(
            self._places[name],
            token=self._token,
            silence_s=self._silence_s,
            within_s=self._within_s,
            ssl_context=self._ssl_context,
        )

    def _send_once(
        self,
        chain: list[str],
        data: memoryview,
        digest: str,
        version: int,
        sent: dict[str, int],
        deadline: float,
    ) -> tuple[dict[str, RelayNotice], dict[str, str]]:
        """Send along one chain; return who has the weights, and who is gone. Others are served again."""
        key = f"w/{secrets.token_hex(8)}"
        for name, following in zip(chain, [*chain[1:], None], strict=True):
            place = None if following is None or self._direct else self._places[following]
            self._controls[name].send(
                RelayOrder(
                    key=key,
                    version=version,
                    size_bytes=len(data),
                    sha256=digest,
                    host=None if place is None else following,
                    address=None if place is None else place.host,
                    port=0 if place is None else place.port,
                )
            )
        for name in chain if self._direct else chain[:1]:
            intro = TransferIntro(transfer=_TRANSFER, key=key, size_bytes=len(data))
            self._controls[name].send_tensor(intro, data)
            sent[self.SENDER] += len(data)
        had: dict[str, RelayNotice] = {}
        gone: dict[str, str] = {}
        while len(had) + len(gone) < len(chain):
            try:
                name, notice = self._notices.get(timeout=max(deadline - time.monotonic(), 0.001))
            except queue.Empty:
                gone |= {each: "no weights in time" for each in chain if each not in had and each not in gone}
                break
            if name not in chain or name in had or notice.key not in (key, "-"):
                continue  # a host that has the weights may leave
            if not notice.reason:
                had[name] = notice
                continue
            gone[name] = notice.reason
            # Whoever stood behind it gets nothing more: they begin again, without it.
            behind = chain if self._direct else chain[chain.index(name) :]
            if self._direct:
                continue
            self._wait_for_those_before(chain[: len(chain) - len(behind)], key, had, gone, deadline)
            break
        return had, gone

    def _wait_for_those_before(
        self,
        before: list[str],
        key: str,
        had: dict[str, RelayNotice],
        gone: dict[str, str],
        deadline: float,
    ) -> None:
        while any(name not in had and name not in gone for name in before):
            try:
                name, notice = self._notices.get(timeout=max(deadline - time.monotonic(), 0.001))
            except queue.Empty:
                gone |= {name: "no weights in time" for name in before if name not in had}
                return
            if notice.key == key and not notice.reason:
                had[name] = notice
            elif notice.reason and name in before and name not in had and notice.key in (key, "-"):
                gone[name] = notice.reason
                return
