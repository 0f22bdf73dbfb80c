"""The sender of weights: forms the chain of hosts, sends to its head and learns who has the weights."""

import hashlib
import queue
import secrets
import ssl
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pace.errors import CommunicationFailed, InvalidUse
from pace.runtime.closing import Closing
from pace.runtime.fabric.connection import FabricLink, connect
from pace.runtime.fabric.messages import Message, RelayNotice, RelayOrder, TransferIntro
from pace.runtime.fabric.weight_sync.receiver import WEIGHTS_TRANSFER
from pace.wire.addresses import ServerAddress

# The key of a notice that is no receiver's: the connection has ended.
_LINK_ENDED = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightDelivery:
    """Outcome of a distribution of weights.

    Attributes
    ----------
    seconds
        Until the last host had them.
    sent_bytes
        What the sender sent, and each host.
    received_bytes
        Bytes that each host received, by name.
    failed
        Hosts that do not have them, and why.
    """

    seconds: float
    order: tuple[str, ...]
    sent_bytes: dict[str, int]
    received_bytes: dict[str, int]
    failed: dict[str, str]


class WeightSender(Closing):
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
        self._notices: queue.SimpleQueue[tuple[str, FabricLink, RelayNotice]] = queue.SimpleQueue()

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
        deadline = began + timeout_s
        left = sorted(self._places, key=lambda name: -self._rates.get(name, 0.0))
        first = tuple(left)
        while left:
            left = self._reach_all(left, failed, deadline)
            if not left:
                break
            had, gone = self._send_once(left, whole, digest, version, sent, deadline)
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

    def _reach_all(self, names: list[str], failed: dict[str, str], deadline: float) -> list[str]:
        """Connect to hosts, to all at once and for at most half of the time; return those that are there."""
        within_s = max((deadline - time.monotonic()) / 2, 0.1)
        with ThreadPoolExecutor(len(names)) as pool:
            found = list(pool.map(lambda name: self._reach(name, failed, within_s), names))
        return [name for name, there in zip(names, found, strict=True) if there]

    def _reach(self, name: str, failed: dict[str, str], within_s: float) -> bool:
        link = self._controls.get(name)
        if link is not None:
            if not link.over:
                return True
            link.close()
        try:
            link = self._connect(name, within_s)
        except CommunicationFailed as error:
            failed[name] = str(error)
            return False

        def hear(link: FabricLink, message: Message) -> None:
            if isinstance(message, RelayNotice):
                self._notices.put((name, link, message))

        def end(link: FabricLink, reason: str) -> None:
            self._notices.put((name, link, RelayNotice(key=_LINK_ENDED, reason=reason)))

        self._controls[name] = link
        link.start(hear, end)
        return True

    def _connect(self, name: str, within_s: float) -> FabricLink:
        return connect(
            self._places[name],
            token=self._token,
            silence_s=min(self._silence_s, within_s),
            within_s=min(self._within_s, within_s),
            ssl_context=self._ssl_context,
        )

    def _next_notice(self, key: str, deadline: float) -> tuple[str, RelayNotice] | None:
        """Return the next notice of a chain, or that a link has ended; None if there is none in time.

        A host may leave once it has the weights: the end of that connection must not be taken for the end of
        the one that the next chain uses.
        """
        while True:
            try:
                name, link, notice = self._notices.get(timeout=max(deadline - time.monotonic(), 0.001))
            except queue.Empty:
                return None
            if link is self._controls.get(name) and notice.key in (key, _LINK_ENDED):
                return name, notice

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
            intro = TransferIntro(transfer=WEIGHTS_TRANSFER, key=key, size_bytes=len(data))
            self._controls[name].send_tensor(intro, data)
            sent[self.SENDER] += len(data)
        had: dict[str, RelayNotice] = {}
        gone: dict[str, str] = {}
        while len(had) + len(gone) < len(chain):
            said = self._next_notice(key, deadline)
            if said is None:
                gone |= {each: "no weights in time" for each in chain if each not in had and each not in gone}
                break
            name, notice = said
            if name not in chain or name in had:
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
            said = self._next_notice(key, deadline)
            if said is None:
                gone |= {name: "no weights in time" for name in before if name not in had}
                return
            name, notice = said
            if not notice.reason:
                had[name] = notice
            elif name in before and name not in had:
                gone[name] = notice.reason
                return
