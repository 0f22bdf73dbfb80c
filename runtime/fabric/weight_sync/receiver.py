"""A host that receives weights bucket by bucket, checks hashes and hands every block on to the next."""

import atexit
import hashlib
import queue
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pace.errors import CommunicationFailed, PaceError
from pace.runtime.closing import Closing
from pace.runtime.event_log import log
from pace.runtime.fabric.connection import FabricLink, Incoming, connect, listen
from pace.runtime.fabric.messages import (
    BlocksAnswer,
    BlocksCall,
    BucketNotice,
    BucketSeal,
    Message,
    RelayAnswer,
    RelayNotice,
    RelayOrder,
)
from pace.runtime.fabric.weight_sync.buckets import BucketTaker, WholeBytes
from pace.wire.addresses import ServerAddress

# How long, in seconds, the end of a receiver waits for a bucket that is copied and cast.
_LAST_BUCKET_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedWeights:
    """Weights that have arrived whole and have the sender's hashes.

    Attributes
    ----------
    data
        Bytes, unless the receiver makes something else of them.
    """

    version: int
    data: Any


class _Relay:
    """State of one distribution at a host: buckets that have arrived, were handed on, and are finished."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.began = time.monotonic()
        self.order: RelayOrder | None = None
        self.asked: FabricLink | None = None
        self.taker: BucketTaker | None = None
        self.next: FabricLink | None = None
        self.arrived: dict[int, Incoming] = {}
        self.seals: dict[int, str] = {}
        self.handed_on: dict[int, int] = {}
        self.received_bytes = 0
        self.queued = 0  # buckets that the worker has or had
        self.over = False


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
        self._relays: dict[str, _Relay] = {}
        self._links: set[FabricLink] = set()
        self._received: queue.SimpleQueue[ReceivedWeights] = queue.SimpleQueue()
        self._work: queue.SimpleQueue[tuple[_Relay, int] | None] = queue.SimpleQueue()
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
        """Write what is still to be handed on and said."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.finish(within_s)

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
        link.start(self._hear, self._lose, self._arrive, self._forward)

    def _relay(self, key: str) -> _Relay:
        return self._relays.setdefault(key, _Relay(key))

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
                    self._queue_ready(relay)

    def _begin(self, link: FabricLink, order: RelayOrder) -> None:
        """Take an order: say what the buckets are taken to be, or why they are refused."""
        following: FabricLink | None = None
        taker: BucketTaker | None = None
        reason = ""
        try:
            if sum(order.sizes) > self._most_bytes:
                reason = f"weights of {sum(order.sizes):,} bytes; at most {self._most_bytes:,} are allowed"
            else:
                taker = self._make_taker(order)
        except PaceError as error:
            reason = str(error)
        if not reason and order.host is not None and order.address is not None:
            following = self._call_next(order.host, order.address, order.port)
        with self._lock:
            for old in [each for each in self._relays.values() if each.asked is link]:
                self._drop(old)  # the sender has given it up
            relay = self._relay(order.key)
            relay.order, relay.asked, relay.next, relay.taker = order, link, following, taker
            if following is not None:
                self._links.add(following)
            told = "" if taker is None else taker.layout_sha256
            link.send(RelayAnswer(key=order.key, layout_sha256=told, reason=reason))
            if reason:
                self._drop(relay)
            elif not order.sizes:
                self._work.put((relay, 0))

    def _call_next(self, host: str, address: str, port: int) -> FabricLink | None:
        """Connect to the next host; without it, this host has the weights and those behind do not."""
        place = ServerAddress(host=address, port=port, name=f"host {host}")
        try:
            link = connect(
                place,
                token=self._token,
                silence_s=self._silence_s,
                within_s=self._silence_s,
                ssl_context=self._trusting,
            )
        except CommunicationFailed as error:
            log.warning("pace.weights_not_forwarded", reason=str(error))
            return None
        link.start(lambda _link, _message: None, self._lose)
        return link

    def _forward(self, _link: FabricLink, incoming: Incoming) -> None:
        with self._lock:
            relay = self._relays.get(incoming.intro.key)
            if relay is not None:
                self._hand_on(relay, incoming)

    def _hand_on(self, relay: _Relay, incoming: Incoming) -> None:
        if relay.next is None:
            return
        transfer = incoming.intro.transfer
        if transfer not in relay.handed_on:
            relay.handed_on[transfer] = 0
            relay.next.send_intro(incoming.intro)
        first, here = relay.handed_on[transfer], len(incoming.data) - incoming.missing
        if here > first:
            relay.next.send_part(transfer, first, memoryview(incoming.data)[first:here])
            relay.handed_on[transfer] = here

    def _arrive(self, _link: FabricLink, incoming: Incoming) -> None:
        with self._lock:
            relay = self._relays.get(incoming.intro.key)
            if relay is None or relay.order is None:
                return  # given up
            bucket = incoming.intro.transfer - 1
            if not 0 <= bucket < len(relay.order.sizes) or relay.order.sizes[bucket] != len(incoming.data):
                self._end(relay, f"bucket {bucket} of {len(incoming.data):,} bytes is not in the order")
                return
            self._hand_on(relay, incoming)
            relay.received_bytes += len(incoming.data)
            relay.arrived[bucket] = incoming
            self._queue_ready(relay)

    def _queue_ready(self, relay: _Relay) -> None:
        """Give the worker the buckets that are next in order and have both their bytes and their hash."""
        while relay.queued in relay.arrived and relay.queued in relay.seals:
            self._work.put((relay, relay.queued))
            relay.queued += 1

    def _take_all(self) -> None:
        while (found := self._work.get()) is not None:
            self._take(*found)

    def _take(self, relay: _Relay, bucket: int) -> None:
        """Check and work on one bucket, outside the lock: blocks of others arrive meanwhile."""
        with self._lock:
            if relay.over or relay.order is None or relay.taker is None:
                return
            order, taker = relay.order, relay.taker
            incoming = relay.arrived.pop(bucket, None)
            seal = relay.seals.get(bucket)
        reason = ""
        done: ReceivedWeights | None = None
        try:
            if incoming is not None:
                if hashlib.sha256(incoming.data).hexdigest() != seal:
                    reason = f"bucket {bucket} has another hash than the sender's"
                else:
                    taker.take(bucket, incoming.data)
            if not reason and bucket + 1 >= len(order.sizes):
                done = ReceivedWeights(version=order.version, data=taker.finish())
        except Exception as error:  # whatever it is, the sender learns of it
            reason = f"bucket {bucket} cannot be taken: {type(error).__name__}: {error}"
        with self._lock:
            if self._relays.get(relay.key) is not relay:
                return  # given up meanwhile
            if reason:
                self._end(relay, reason)
                return
            if done is not None:
                # Before the sender learns of it: whoever stops this host then must find the weights here.
                self._received.put(done)
                self._end(relay, "")
            elif relay.asked is not None:
                relay.asked.send(BucketNotice(key=relay.key, bucket=bucket))

    def _drop(self, relay: _Relay) -> None:
        """Forget a distribution."""
        relay.over = True
        self._relays.pop(relay.key, None)
        if relay.next is not None:
            threading.Thread(target=self._say_goodbye, args=(relay.next,), daemon=True).start()

    def _end(self, relay: _Relay, reason: str) -> None:
        self._drop(relay)
        if relay.asked is not None:
            relay.asked.send(
                RelayNotice(
                    key=relay.key,
                    received_bytes=relay.received_bytes,
                    sent_bytes=sum(relay.handed_on.values()),
                    seconds=time.monotonic() - relay.began,
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
            for relay in [each for each in self._relays.values() if each.next is link]:
                relay.next = None
            for relay in [each for each in self._relays.values() if each.asked is link]:
                self._drop(relay)  # the sender is gone: what was staged is forgotten
        log.debug("pace.weights_link_ended", reason=reason)
        threading.Thread(target=link.close, daemon=True).start()
