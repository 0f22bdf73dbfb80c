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
from pace.wire.addresses import ServerAddress
from pace_fabric.runtime.connection import FabricLink, connect
from pace_fabric.runtime.messages import BucketSeal, Message, RelayNotice, RelayOrder, TransferIntro
from pace_fabric.runtime.weight_sync.buckets import BucketSource, one_bucket
from pace_fabric.runtime.weight_sync.chain import LATE, DeliveryChain, ReceiverNotice

# The key of a notice that is no receiver's: the connection has ended.
_LINK_ENDED = "-"
_LAST_TRANSFER = (1 << 32) - 1
# How long, in seconds, a receiver is called that was called before: others wait meanwhile.
_CALLED_AGAIN_S = 3.0


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
    wanting
        Those of them that would take whole weights instead of a delta.
    """

    seconds: float
    order: tuple[str, ...]
    sent_bytes: dict[str, int]
    received_bytes: dict[str, int]
    failed: dict[str, str]
    wanting: tuple[str, ...] = ()


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
    bytes_per_s
        Pace of what is sent from here; None for as fast as links allow.
    keep_order
        Keep the order of `receivers`, whichever turns out to be fast.
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
        bytes_per_s: float | None = None,
        keep_order: bool = False,
    ) -> None:
        if not receivers or len({place.name for place in receivers}) < len(receivers):
            raise InvalidUse("receivers of different names are needed, at least one")
        self._token, self._ssl_context = token, ssl_context
        self._silence_s, self._within_s = silence_s, within_s
        self._places = {place.name: place for place in receivers}
        self._rates = dict(rates or {})
        self._direct = direct
        self._bytes_per_s = bytes_per_s
        self._keep_order = keep_order
        self._next_transfer = 1
        self._called: set[str] = set()
        self._controls: dict[str, FabricLink] = {}
        self._kept: set[str] = set()  # whose connections are of an earlier delivery
        self._notices: queue.SimpleQueue[tuple[str, FabricLink, ReceiverNotice]] = queue.SimpleQueue()

    def close(self) -> None:
        """End all connections."""
        for link in self._controls.values():
            link.close()
        self._controls.clear()

    def distribute(
        self, data: bytes | bytearray | memoryview, version: int = 0, *, timeout_s: float = 3600.0
    ) -> WeightDelivery:
        """Bring bytes to all receivers; those that fail are named in the report."""
        return self.distribute_buckets(one_bucket(data), version, timeout_s=timeout_s)

    def distribute_buckets(
        self,
        source: BucketSource,
        version: int = 0,
        *,
        only: Sequence[str] | None = None,
        timeout_s: float = 3600.0,
    ) -> WeightDelivery:
        """Bring buckets to all receivers, or only to some; those that fail are named in the report.

        No byte is sent before every receiver of a chain has answered with the hash of the same layout.

        Raises
        ------
        InvalidUse
            For buckets larger than the credit, which could never be sent, and for a version that is negative
            or at least 2^53.
        """
        largest = max(source.sizes, default=0)
        if source.credit_bytes is not None and largest > source.credit_bytes:
            raise InvalidUse(f"a bucket has {largest:,} bytes, but credit_bytes is {source.credit_bytes:,}")
        if not 0 <= version < 2**53:
            raise InvalidUse(f"version {version}: give a number from 0 to 2^53 - 1")
        sent, received = dict.fromkeys([self.SENDER, *self._places], 0), dict.fromkeys(self._places, 0)
        failed: dict[str, str] = {}
        wanting: list[str] = []
        began = time.monotonic()
        deadline = began + timeout_s
        left = sorted(self._places if only is None else only, key=lambda name: -self._rates.get(name, 0.0))
        first = tuple(left)
        while left := self._reach_all(left, failed, deadline):
            had, gone, wants = self._send_once(left, source, version, sent, deadline)
            wanting += wants
            for name, notice in had.items():
                received[name] += notice.received_bytes
                sent[name] += notice.sent_bytes
                if notice.seconds > 0 and not self._keep_order:
                    self._rates[name] = notice.received_bytes / notice.seconds
            failed |= gone
            left = [name for name in left if name not in had and name not in gone]
        return WeightDelivery(
            seconds=time.monotonic() - began,
            order=first,
            sent_bytes=sent,
            received_bytes=received,
            failed=failed,
            wanting=tuple(wanting),
        )

    def _reach_all(self, names: list[str], failed: dict[str, str], deadline: float) -> list[str]:
        """Connect to hosts, to all at once and for at most half of the time; return those that are there."""
        left_s = deadline - time.monotonic()
        if not names or left_s <= 0:
            failed |= dict.fromkeys(names, LATE)
            return []
        within_s = max(left_s / 2, 0.1)
        with ThreadPoolExecutor(len(names)) as pool:
            found = list(pool.map(lambda name: self._reach(name, failed, within_s), names))
        return [name for name, there in zip(names, found, strict=True) if there]

    def _reach(self, name: str, failed: dict[str, str], within_s: float) -> bool:
        link = self._controls.get(name)
        if link is not None:
            if not link.over:
                self._kept.add(name)
                return True
            link.close()
        self._kept.discard(name)
        if name in self._called:
            within_s = min(within_s, _CALLED_AGAIN_S)
        self._called.add(name)
        try:
            link = self._connect(name, within_s)
        except CommunicationFailed as error:
            failed[name] = str(error)
            return False

        def hear(link: FabricLink, message: Message) -> None:
            if isinstance(message, ReceiverNotice):
                self._notices.put((name, link, message))

        def end(link: FabricLink, reason: str) -> None:
            self._notices.put((name, link, RelayNotice(key=_LINK_ENDED, reason=reason)))

        self._controls[name] = link
        link.start(hear, end)
        if self._bytes_per_s is not None:
            link.set_rate(self._bytes_per_s)
        return True

    def _connect(self, name: str, within_s: float) -> FabricLink:
        return connect(
            self._places[name],
            token=self._token,
            silence_s=min(self._silence_s, within_s),
            within_s=min(self._within_s, within_s),
            hello_s=0.0,
            ssl_context=self._ssl_context,
        )

    def _next_notice(self, key: str, deadline: float) -> tuple[str, ReceiverNotice] | None:
        """Return the next notice of a chain, or that a link has ended; None if there is none in time.

        A host may leave once it has the weights: the end of that connection must not be taken for the end of
        the one that the next chain uses.
        """
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                name, link, notice = self._notices.get(timeout=left_s)
            except queue.Empty:
                break
            if link is self._controls.get(name) and notice.key in (key, _LINK_ENDED):
                return name, notice
        return None

    def _send_once(
        self, hosts: list[str], source: BucketSource, version: int, sent: dict[str, int], deadline: float
    ) -> tuple[dict[str, RelayNotice], dict[str, str], list[str]]:
        """Send along one chain; return who has the weights, who is gone, and who of these wants whole ones.

        Others are served again.
        """
        first = self._take_transfers(len(source.sizes))
        chain = DeliveryChain(hosts, f"w/{secrets.token_hex(8)}", first, direct=self._direct)
        for name, following in zip(hosts, [*hosts[1:], None], strict=True):
            place = None if following is None or self._direct else self._places[following]
            self._controls[name].send(
                RelayOrder(
                    key=chain.key,
                    version=version,
                    first_transfer=first,
                    sizes=tuple(source.sizes),
                    layout=source.layout,
                    host=None if place is None else following,
                    address=None if place is None else place.host,
                    port=0 if place is None else place.port,
                )
            )
        # Half of the time: those who say nothing leave the others some.
        answer_by = (time.monotonic() + deadline) / 2
        while chain.unanswered:
            if not self._hear_one(chain, answer_by):
                chain.give_up(chain.unanswered)
        for name, told in chain.answered.items():
            if told != source.layout_sha256:
                chain.gone[name] = "its layout of the buckets has another hash than this sender's"
        if chain.gone:  # nothing was sent yet: the others begin again, without it
            self._tell_untold(chain)
            # A connection that was kept may have ended long ago, unnoticed: a new host may listen there.
            again = {
                name
                for name in self._kept.difference(chain.wanting)
                if name in chain.gone and self._controls[name].over
            }
            return {}, {name: said for name, said in chain.gone.items() if name not in again}, chain.wanting
        under_way: list[int] = []
        for bucket, size in enumerate(source.sizes):
            while chain.served and source.credit_bytes is not None:
                under_way = [each for each in under_way if not chain.has_finished(each)]
                held = sum(source.sizes[each] for each in under_way)
                if held + size <= source.credit_bytes or not self._hear_or_give_up(chain, deadline):
                    break
            if not chain.served:
                break
            under_way.append(bucket)
            try:
                self._send_bucket(chain, source, bucket, sent)
            except InvalidUse as error:  # of the source: no bucket of this version is worth anything
                for name in chain.served:
                    self._controls[name].send(RelayNotice(key=chain.key, reason=str(error)))
                raise
        while chain.waits and self._hear_or_give_up(chain, deadline):
            pass
        self._tell_untold(chain)
        return chain.had, chain.gone, chain.wanting

    def _tell_untold(self, chain: DeliveryChain) -> None:
        """Tell those that were given up, so that they give the transfer up too."""
        for name in chain.untold:
            self._controls[name].send(RelayNotice(key=chain.key, reason=chain.gone[name]))

    def _take_transfers(self, count: int) -> int:
        """Return the first of as many numbers of transfers, which no order that may be under way has."""
        if self._next_transfer + count > _LAST_TRANSFER:
            self._next_transfer = 1
        first = self._next_transfer
        self._next_transfer += count
        return first

    def _send_bucket(
        self, chain: DeliveryChain, source: BucketSource, bucket: int, sent: dict[str, int]
    ) -> None:
        """Put one bucket into the links to those who get it from here; its hash is made meanwhile."""
        size = source.sizes[bucket]
        transfer = chain.first_transfer + bucket
        intro = TransferIntro(transfer=transfer, key=chain.key, size_bytes=size)
        heads = [self._controls[name] for name in (chain.served if self._direct else chain.served[:1])]
        for link in heads:
            link.send_intro(intro)
            sent[self.SENDER] += size
        told, offset = hashlib.sha256(), 0
        for part in source.parts(bucket):
            for link in heads:
                link.send_part(transfer, offset, part)
            told.update(part)
            offset += len(part)
        assert offset == size
        seal = BucketSeal(key=chain.key, bucket=bucket, sha256=told.hexdigest())
        for name in chain.served:
            self._controls[name].send(seal)

    def _hear_one(self, chain: DeliveryChain, deadline: float) -> bool:
        """Wait for the next notice; return whether there was one in time."""
        said = self._next_notice(chain.key, deadline)
        if said is not None:
            chain.hear(*said)
        return said is not None

    def _hear_or_give_up(self, chain: DeliveryChain, deadline: float) -> bool:
        """Wait for the next notice; without one in time, give up those that have no weights."""
        heard = self._hear_one(chain, deadline)
        if not heard:
            chain.give_up(chain.served)
        return heard
