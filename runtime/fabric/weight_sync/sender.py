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
from pace.runtime.fabric.messages.any_message import Message
from pace.runtime.fabric.messages.transfers import TransferIntro
from pace.runtime.fabric.messages.weights import (
    BucketNotice,
    BucketSeal,
    ChainCut,
    RelayAnswer,
    RelayNotice,
    RelayOrder,
)
from pace.runtime.fabric.weight_sync.buckets import BucketSource, one_bucket
from pace.wire.addresses import ServerAddress

# The key of a notice that is no receiver's: the connection has ended.
_LINK_ENDED = "-"
_LAST_TRANSFER = (1 << 32) - 1
# How long, in seconds, a receiver is called that was called before: others wait meanwhile.
_CALLED_AGAIN_S = 3.0
_Notice = RelayAnswer | BucketNotice | RelayNotice | ChainCut


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
        self._notices: queue.SimpleQueue[tuple[str, FabricLink, _Notice]] = queue.SimpleQueue()

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
            raise InvalidUse(f"a bucket has {largest:,} bytes, and credit_bytes is {source.credit_bytes:,}")
        if not 0 <= version < 2**53:
            raise InvalidUse(f"version {version}: give a number from 0 to 2^53 - 1")
        sent, received = dict.fromkeys([self.SENDER, *self._places], 0), dict.fromkeys(self._places, 0)
        failed: dict[str, str] = {}
        wanting: list[str] = []
        began = time.monotonic()
        deadline = began + timeout_s
        left = sorted(self._places if only is None else only, key=lambda name: -self._rates.get(name, 0.0))
        first = tuple(left)
        while left:
            left = self._reach_all(left, failed, deadline)
            if not left:
                break
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
        if name in self._called:
            within_s = min(within_s, _CALLED_AGAIN_S)
        self._called.add(name)
        try:
            link = self._connect(name, within_s)
        except CommunicationFailed as error:
            failed[name] = str(error)
            return False

        def hear(link: FabricLink, message: Message) -> None:
            if isinstance(message, _Notice):
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
            ssl_context=self._ssl_context,
        )

    def _next_notice(self, key: str, deadline: float) -> tuple[str, _Notice] | None:
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
        self, hosts: list[str], source: BucketSource, version: int, sent: dict[str, int], deadline: float
    ) -> tuple[dict[str, RelayNotice], dict[str, str], list[str]]:
        """Send along one chain; return who has the weights, who is gone, and who of these wants whole ones.

        Others are served again.
        """
        first = self._take_transfers(len(source.sizes))
        chain = _Chain(hosts, f"w/{secrets.token_hex(8)}", first, direct=self._direct)
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
        while len(chain.answered) + len(chain.gone) < len(hosts) and self._hear_one(chain, deadline):
            pass
        for name, told in chain.answered.items():
            if told != source.layout_sha256:
                chain.gone[name] = "it takes the buckets to be others: its layout has another hash"
        if chain.gone:
            return {}, chain.gone, chain.wanting  # nothing was sent yet: the others begin again, without it
        under_way: list[int] = []
        for bucket, size in enumerate(source.sizes):
            while chain.served and source.credit_bytes is not None:
                under_way = [each for each in under_way if not chain.has_finished(each)]
                held = sum(source.sizes[each] for each in under_way)
                if held + size <= source.credit_bytes or not self._hear_one(chain, deadline):
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
        while chain.waits and self._hear_one(chain, deadline):
            pass
        for name in chain.untold:
            self._controls[name].send(RelayNotice(key=chain.key, reason=chain.gone[name]))
        return chain.had, chain.gone, chain.wanting

    def _take_transfers(self, count: int) -> int:
        """Return the first of as many numbers of transfers, which no order that may be under way has."""
        if self._next_transfer + count > _LAST_TRANSFER:
            self._next_transfer = 1
        first = self._next_transfer
        self._next_transfer += count
        return first

    def _send_bucket(self, chain: "_Chain", source: BucketSource, bucket: int, sent: dict[str, int]) -> None:
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

    def _hear_one(self, chain: "_Chain", deadline: float) -> bool:
        """Wait for the next notice; return whether there was one in time."""
        said = self._next_notice(chain.key, deadline)
        if said is None:
            chain.give_up()
            return False
        chain.hear(*said)
        return True


class _Chain:
    """State of one chain: who is served, who has finished, who is gone.

    Attributes
    ----------
    served
        Those that still get bytes of this chain, in its order.
    untold
        Those that still wait for a version that was given up.
    """

    def __init__(self, hosts: list[str], key: str, first_transfer: int, *, direct: bool) -> None:
        self.key, self.first_transfer = key, first_transfer
        self.served = list(hosts)
        self.answered: dict[str, str] = {}
        self.had: dict[str, RelayNotice] = {}
        self.gone: dict[str, str] = {}
        self.untold: list[str] = []
        self.wanting: list[str] = []
        self._finished = dict.fromkeys(hosts, 0)
        self._direct = direct

    @property
    def waits(self) -> bool:
        """Whether a host that is served does not have the weights yet."""
        return any(name not in self.had for name in self.served)

    def has_finished(self, bucket: int) -> bool:
        """Whether all that are served have finished a bucket."""
        return all(name in self.had or self._finished[name] > bucket for name in self.served)

    def hear(self, name: str, notice: "_Notice") -> None:
        """Take what a host says; a host that has the weights may leave."""
        if name in self.had or name in self.gone:
            return
        if isinstance(notice, BucketNotice):
            self._finished[name] = max(self._finished[name], notice.bucket + 1)
        elif isinstance(notice, ChainCut):
            self._begin_again(name, 1)
        elif isinstance(notice, RelayNotice) and notice.again:
            self._begin_again(name, 0)
        elif isinstance(notice, RelayNotice) and notice.given_up:
            self.gone[name] = notice.reason
            self.untold = [other for other in self.served if other not in self.had and other != name]
            self.gone |= dict.fromkeys(self.untold, notice.reason)
            self.served = []
        elif notice.reason:
            self.gone[name] = notice.reason
            if notice.wants_whole:
                self.wanting.append(name)
            # Who stands behind it gets nothing more: they begin again, without it.
            self._begin_again(name, 0)
        elif isinstance(notice, RelayAnswer):
            self.answered[name] = notice.layout_sha256
        else:
            self.had[name] = notice

    def _begin_again(self, name: str, first: int) -> None:
        """Send nothing more from a host on, or from behind it: who is not gone is served by a new chain."""
        if name in self.served:
            place = self.served.index(name) + first
            self.served[place : place + 1 if self._direct else None] = []

    def give_up(self) -> None:
        """Take those that have nothing in time for gone."""
        for name in self.served:
            if name not in self.had:
                self.gone.setdefault(name, "no weights in time")
                self.untold.append(name)
        self.served = [name for name in self.served if name in self.had]
