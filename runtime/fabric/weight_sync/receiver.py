"""A host that receives weights, checks their hash and hands every block on to the host behind it."""

import hashlib
import queue
import ssl
import threading
import time
from dataclasses import dataclass

from pace.errors import CommunicationFailed
from pace.runtime.closing import Closing
from pace.runtime.event_log import log
from pace.runtime.fabric.connection import FabricLink, Incoming, connect, listen
from pace.runtime.fabric.messages import Message, RelayNotice, RelayOrder, TransferIntro
from pace.wire.addresses import ServerAddress

# A link carries one tensor at a time here, so that its number need not be chosen.
WEIGHTS_TRANSFER = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedWeights:
    """Weights that have arrived and have the sender's hash."""

    version: int
    data: bytearray


class _Relay:
    """State of one distribution at a host: blocks that have arrived, and blocks that were handed on."""

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


class WeightReceiver(Closing):
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
        self._listener = listen(bind, self._accept, token=token, ssl_context=serving)
        self.host, self.port = self._listener.host, self._listener.port

    @property
    def address(self) -> str:
        """Address at which it listens, as HOST:PORT."""
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
        self._listener.stop()
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
                log.warning("pace.weights_not_forwarded", reason=str(error))
        with self._lock:
            for old in [each for each in self._relays.values() if each.asked is link]:
                del self._relays[old.key]  # the sender has given it up
            relay = self._relay(message.key)
            relay.order, relay.asked, relay.next = message, link, following
            if following is not None:
                self._links.add(following)
                following.send(
                    TransferIntro(transfer=WEIGHTS_TRANSFER, key=message.key, size_bytes=message.size_bytes)
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
            relay.next.send_part(WEIGHTS_TRANSFER, memoryview(incoming.data), relay.handed_on, here)
            relay.handed_on = here
        if relay.arrived:
            if hashlib.sha256(incoming.data).hexdigest() == relay.order.sha256:
                # Before the sender learns of it: whoever stops this host then must find the weights here.
                self._received.put(ReceivedWeights(version=relay.order.version, data=incoming.data))
                self._end(relay, "")
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
