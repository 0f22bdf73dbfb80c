"""What a host knows of one distribution that goes through it."""

import hashlib
import time

from pace_fabric.runtime.connection import FabricLink, Incoming
from pace_fabric.runtime.messages.weights import RelayOrder
from pace_fabric.runtime.weight_sync.buckets import BucketTaker


class Relay:
    """State of one distribution at a host: buckets that arrive, were handed on, and are finished.

    Attributes
    ----------
    arrives
        Buckets of which bytes are here, until the worker has finished them.
    told_bytes
        How much of all buckets the worker was told of.
    source
        The connection over which buckets come.
    bucket, taken_bytes, hashed
        The worker's own: the bucket that it works on, how far it is, and the hash until there.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.began = time.monotonic()
        self.order: RelayOrder | None = None
        self.asked: FabricLink | None = None
        self.taker: BucketTaker | None = None
        self.source: FabricLink | None = None
        self.next: FabricLink | None = None
        self.arrives: dict[int, Incoming] = {}
        self.seals: dict[int, str] = {}
        self.handed_on: dict[int, int] = {}
        self.received_bytes = 0
        self.told_bytes = 0
        self.bucket = self.taken_bytes = 0
        self.hashed = hashlib.sha256()
        self.over = False

    @property
    def lacks_bytes(self) -> bool:
        """Whether bytes of some bucket are still to come."""
        return self.order is not None and self.received_bytes < sum(self.order.sizes)
