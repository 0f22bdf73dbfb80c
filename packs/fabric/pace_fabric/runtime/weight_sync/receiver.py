"""A host that receives weights bucket by bucket, checks hashes and hands every block on to the next."""

import atexit
import hashlib
import queue
import ssl
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pace.errors import CommunicationFailed, PaceError
from pace.runtime.closing import Closing
from pace.runtime.event_log import log
from pace.wire.addresses import ServerAddress
from pace_fabric.runtime.connection import FabricLink, Incoming, connect, listen
from pace_fabric.runtime.messages import (
    BlocksAnswer,
    BlocksCall,
    BucketNotice,
    BucketSeal,
    ChainCut,
    Message,
    RelayAnswer,
    RelayNotice,
    RelayOrder,
)
from pace_fabric.runtime.weight_sync.buckets import BucketTaker, WholeBytes, WholeWanted
from pace_fabric.runtime.weight_sync.chain import Relay

# How long, in seconds, the next host is called: the sender has reached it, and all hosts wait meanwhile.
_NEXT_HOST_S = 5.0
# How long, in seconds, the end of a receiver waits for a bucket that is copied and cast.
_LAST_BUCKET_S = 10.0
# How long a sender may take to read what was said last, and to close.
_READ_S = 5.0
# The worker hashes and copies a bucket in steps of this size, while the rest of it arrives.
_STEP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedWeights:
    """Weights that have arrived whole and have the sender's hashes.

    Attributes
    ----------
    data
        A memoryview or bytearray, unless the receiver makes something else of the bytes.
    """

    version: int
    data: Any


class WeightReceiver(Closing):
    """Listens for weights from the start.

    Parameters
    ----------
    bind
        Where the sender and the host before this one call.
    make_taker
        What becomes of the buckets of an order; an error of ours refuses the order before the first byte.
        By default they are kept as bytes.
    missing
        Returns the blocks that this host lacks, where `make_taker` keeps them in a `BlockFile`.
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
        make_taker: Callable[[RelayOrder], BucketTaker] = WholeBytes,
        missing: Callable[[BlocksCall], tuple[int, ...]] | None = None,
    ) -> None:
        self._token, self._trusting = token, trusting
        self._most_bytes, self._silence_s = most_bytes, silence_s
        self._make_taker, self._missing = make_taker, missing
        self._lock = threading.RLock()
        self._relays: dict[str, Relay] = {}
        self._links: set[FabricLink] = set()
        self._callers: weakref.WeakSet[FabricLink] = weakref.WeakSet()
        self._received: queue.SimpleQueue[ReceivedWeights] = queue.SimpleQueue()
        self._work: queue.SimpleQueue[Relay | None] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._take_all, name="pace.weights", daemon=True)
        self._worker.start()
        self._listener = listen(bind, self._accept, token=token, ssl_context=serving)
        self.host, self.port = self._listener.host, self._listener.port
        # A thread that is in torch's code when the interpreter ends would abort the process.
        atexit.register(self.close)

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
        """Write what is still to be handed on and said, and let senders read it."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.finish(within_s, read_s=_READ_S if link in self._callers else 0.0)

    def close(self) -> None:
        """Stop listening, end all connections, and wait for the bucket that is being taken."""
        atexit.unregister(self.close)
        self._listener.stop()
        self._work.put(None)
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()
        self._worker.join(_LAST_BUCKET_S)

    def _accept(self, link: FabricLink) -> None:
        with self._lock:
            self._links.add(link)
            self._callers.add(link)
        link.start(self._hear, self._lose, on_blocks=self._forward)

    def _relay(self, key: str) -> Relay:
        return self._relays.setdefault(key, Relay(key))

    def _hear(self, link: FabricLink, message: Message) -> None:
        if isinstance(message, RelayOrder):
            self._begin(link, message)
        elif isinstance(message, BlocksCall):
            missing = None if self._missing is None else self._missing(message)
            link.send(BlocksAnswer(missing=missing))
        elif isinstance(message, BucketSeal):
            with self._lock:
                relay = self._relays.get(message.key)
                if relay is not None and relay.asked is link:
                    relay.seals[message.bucket] = message.sha256
                    self._work.put(relay)
        elif isinstance(message, RelayNotice):
            with self._lock:
                relay = self._relays.get(message.key)
                if relay is not None and relay.asked is link:
                    self._end(relay, message.reason or "its sender gave up", given_up=True)

    def _begin(self, link: FabricLink, order: RelayOrder) -> None:
        """Take an order: say what the buckets are taken to be, or why they are refused."""
        following: FabricLink | None = None
        taker: BucketTaker | None = None
        reason, wants_whole = "", False
        with self._lock:
            before = [each for each in self._relays.values() if each.asked is link]
            for old in before:
                self._drop(old)  # the sender has given it up
        try:
            if sum(order.sizes) > self._most_bytes:
                reason = f"weights of {sum(order.sizes):,} bytes; at most {self._most_bytes:,} are allowed"
            else:
                taker = self._make_taker(order)
        except PaceError as error:
            reason, wants_whole = str(error), isinstance(error, WholeWanted)
        if not reason and order.host is not None and order.address is not None:
            following = self._call_next(order.host, order.address, order.port)
        with self._lock:
            relay = self._relay(order.key)
            relay.order, relay.asked, relay.next, relay.taker = order, link, following, taker
            if following is not None:
                self._links.add(following)
            self._end_others(relay, before, reason)
            told = "" if taker is None else taker.layout_sha256
            link.send(RelayAnswer(key=order.key, layout_sha256=told, reason=reason, wants_whole=wants_whole))
            if not reason and order.host is not None and following is None:
                link.send(ChainCut(key=order.key, reason=f"host {order.host} cannot be reached from here"))
            if reason:
                self._drop(relay)
            elif not order.sizes:
                self._work.put(relay)

    def _call_next(self, host: str, address: str, port: int) -> FabricLink | None:
        """Connect to the next host; without it, this host gets the weights and those behind another way."""
        place = ServerAddress(host=address, port=port, name=f"host {host}")
        try:
            link = connect(
                place,
                token=self._token,
                silence_s=self._silence_s,
                within_s=min(self._silence_s, _NEXT_HOST_S),
                hello_s=0.0,
                ssl_context=self._trusting,
            )
        except CommunicationFailed as error:
            log.warning("pace.weights_not_forwarded", reason=str(error))
            return None
        link.start(lambda _link, _message: None, self._lose)
        return link

    def _forward(self, link: FabricLink, incoming: Incoming) -> None:
        """Hand on what has arrived of a bucket, and let the worker begin with it."""
        with self._lock:
            relay = self._relays.get(incoming.intro.key)
            if relay is None or relay.order is None:
                return  # given up
            bucket = incoming.intro.transfer - relay.order.first_transfer
            if bucket not in relay.arrives:
                sizes, size_bytes = relay.order.sizes, incoming.intro.size_bytes
                if not 0 <= bucket < len(sizes) or sizes[bucket] != size_bytes:
                    self._end(relay, f"bucket {bucket} of {size_bytes:,} bytes is not in the order")
                    return
                relay.arrives[bucket] = incoming
                relay.source = link
            self._hand_on(relay, incoming)
            here = relay.received_bytes + incoming.arrived_bytes
            if not incoming.missing:
                relay.received_bytes = here
            if not incoming.missing or here - relay.told_bytes >= _STEP_BYTES:
                relay.told_bytes = here
                self._work.put(relay)

    def _hand_on(self, relay: Relay, incoming: Incoming) -> None:
        if relay.next is None:
            return
        transfer = incoming.intro.transfer
        if transfer not in relay.handed_on:
            relay.handed_on[transfer] = 0
            relay.next.send_intro(incoming.intro)
        first, here = relay.handed_on[transfer], incoming.arrived_bytes
        if here > first:
            relay.next.send_part(transfer, first, incoming.data[first:here])
            relay.handed_on[transfer] = here

    def _take_all(self) -> None:
        while (found := self._work.get()) is not None:
            while self._take(found):
                pass

    def _take(self, relay: Relay) -> bool:
        """Work on what is here of the next bucket, outside the lock: blocks of others arrive meanwhile.

        Returns whether the bucket is finished, and the next one is due.
        """
        bucket = relay.bucket
        with self._lock:
            if relay.over or relay.order is None or relay.taker is None:
                return False
            order, taker = relay.order, relay.taker
            incoming = relay.arrives.get(bucket)
            seal = relay.seals.get(bucket)
            here = 0 if incoming is None else incoming.arrived_bytes
        reason, last, wants_whole = "", False, False
        data: Any = None
        try:
            if incoming is not None:
                if here > relay.taken_bytes:
                    relay.hashed.update(incoming.data[relay.taken_bytes : here])
                    taker.take(bucket, incoming.data, relay.taken_bytes, here)
                    relay.taken_bytes = here
                if here < incoming.intro.size_bytes or seal is None:
                    return False
                if relay.hashed.hexdigest() != seal:
                    reason = f"bucket {bucket} has another hash than the sender's"
            elif order.sizes:
                return False
            if not reason and bucket + 1 >= len(order.sizes):
                last = True
                data = taker.finish()
        except WholeWanted as error:
            reason, wants_whole = str(error), True
        except Exception as error:  # whatever it is, the sender learns of it
            reason = f"bucket {bucket} cannot be taken: {type(error).__name__}: {error}"
        relay.bucket, relay.taken_bytes, relay.hashed = bucket + 1, 0, hashlib.sha256()
        with self._lock:
            relay.arrives.pop(bucket, None)
            if self._relays.get(relay.key) is not relay:
                return False  # given up meanwhile
            if reason:
                self._end(relay, reason, wants_whole=wants_whole)
                return False
            if last:
                if data is not None:
                    taker.keep()
                    # Before the sender learns of it: whoever stops this host then must find the weights here.
                    self._received.put(ReceivedWeights(version=order.version, data=data))
                    self._end(relay, "")
                return False  # other parts may be missing
            if relay.asked is not None:
                relay.asked.send(BucketNotice(key=relay.key, bucket=bucket))
        return True

    def _end_others(self, relay: Relay, before: list[Relay], reason: str) -> None:
        """End what can never be whole, because of an order: parts of another version, or of a refused one."""
        order = relay.order
        whole = None if relay.taker is None else relay.taker.whole
        given_up = {id(each.taker.whole) for each in before if each.taker is not None}
        assert order is not None
        for other in list(self._relays.values()):
            if other.taker is None or other.taker.whole is None or other.taker.whole is whole:
                continue
            assert other.order is not None
            if reason and other.order.version == order.version:
                self._end(other, f"a part of version {order.version} was refused: {reason}", given_up=True)
            elif whole is not None or id(other.taker.whole) in given_up:
                said = f"version {other.order.version} was given up: version {order.version} has begun"
                self._end(other, said, given_up=True)

    def _drop(self, relay: Relay) -> None:
        """Forget a distribution."""
        relay.over = True
        self._relays.pop(relay.key, None)
        if relay.taker is not None:
            relay.taker.drop()
        if relay.next is not None:
            threading.Thread(target=self._say_goodbye, args=(relay.next,), daemon=True).start()

    def _end(self, relay: Relay, reason: str, *, given_up: bool = False, wants_whole: bool = False) -> None:
        """End a distribution and all parts of the same whole, and tell their senders."""
        whole = None if relay.taker is None else relay.taker.whole
        for each in list(self._relays.values()):
            part = each.taker is not None and whole is not None and each.taker.whole is whole
            if each is not relay and not part:
                continue
            self._drop(each)
            if each.asked is not None:
                each.asked.send(
                    RelayNotice(
                        key=each.key,
                        received_bytes=each.received_bytes,
                        sent_bytes=sum(each.handed_on.values()),
                        seconds=time.monotonic() - each.began,
                        reason=reason,
                        given_up=given_up or (each is not relay and bool(reason)),
                        wants_whole=wants_whole,
                    )
                )

    def _say_goodbye(self, link: FabricLink) -> None:
        link.finish(within_s=600.0)
        with self._lock:
            self._links.discard(link)

    def _lose(self, link: FabricLink, reason: str) -> None:
        with self._lock:
            self._links.discard(link)
            for relay in [each for each in self._relays.values() if each.next is link]:
                relay.next = None
                if relay.asked is not None:
                    relay.asked.send(ChainCut(key=relay.key, reason=f"the next host is gone: {reason}"))
            for relay in [each for each in self._relays.values() if each.asked is link]:
                # The sender is gone: what was staged is forgotten, and parts of others are in vain.
                name = "" if relay.taker is None else f' "{relay.taker.sender}"'
                self._end(relay, f"sender{name} of a part is gone: {reason}")
            for relay in [each for each in self._relays.values() if each.source is link]:
                if relay.lacks_bytes and relay.asked is not None:
                    # Only this order: the parts of other senders go on.
                    self._drop(relay)
                    said = f"the host before it is gone: {reason}"
                    relay.asked.send(RelayNotice(key=relay.key, reason=said, again=True))
        log.debug("pace.weights_link_ended", reason=reason)
        threading.Thread(target=link.close, daemon=True).start()
