"""Links from one host to others, and the transfers that the scheduler orders over them."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pace.errors import CommunicationFailed
from pace.wire.addresses import ServerAddress
from pace_fabric.runtime.byte_store import ByteStore
from pace_fabric.runtime.connection import FabricLink
from pace_fabric.runtime.messages import (
    FailureNotice,
    Message,
    RateOrder,
    TransferIntro,
    TransferOrder,
)


@dataclass(slots=True)
class _Peer:
    """The link to another host, and the transfers that were last put on it."""

    link: FabricLink
    sent: deque[int] = field(default_factory=lambda: deque(maxlen=256))


class PeerLinks:
    """Connections that are made when first needed; only the daemon's thread calls it.

    Parameters
    ----------
    name
        Name of this host.
    dial
        Makes a connection.
    tell
        Sends a notice to the scheduler.
    post
        Has something done on the daemon's thread.
    """

    def __init__(
        self,
        name: str,
        store: ByteStore,
        dial: Callable[[ServerAddress], FabricLink],
        tell: Callable[[Message], None],
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._name, self._store = name, store
        self._dial, self._tell, self._post = dial, tell, post
        self._peers: dict[str, _Peer] = {}

    def send(self, order: TransferOrder) -> None:
        """Send what the store has to another host, or tell the scheduler why not."""
        kept = self._store.get(order.key)
        if kept is None:
            self._tell(FailureNotice(transfer=order.transfer, reason=f"{self._name} has no {order.key}"))
            return
        peer = self._peers.get(order.host)
        if peer is None or peer.link.over:
            # Connecting takes one round trip: a host that does not answer quickly is taken for lost.
            try:
                link = self._dial(
                    ServerAddress(host=order.address, port=order.port, name=f"host {order.host}")
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
            size_bytes=len(kept.data),
            version=kept.version,
            host=self._name,
            form=kept.form,
        )
        peer.link.send_tensor(intro, memoryview(kept.data))
        if order.once:
            self._store.consume(order.key)

    def set_rate(self, order: RateOrder) -> None:
        """Let a link carry at most so much from now on."""
        if order.host in self._peers:
            self._peers[order.host].link.set_rate(order.rate)

    def _lose(self, link: FabricLink, reason: str) -> None:
        peer = self._peers.get(link.host)
        if peer is not None and peer.link is link:
            del self._peers[link.host]
            for transfer in peer.sent:
                self._tell(FailureNotice(transfer=transfer, reason=reason))
        link.close()

    def close(self) -> None:
        """End all links."""
        for peer in self._peers.values():
            peer.link.close()
