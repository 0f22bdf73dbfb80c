"""One chain of hosts that weights go along: who is served, finished or gone, and what each host knows."""

import hashlib
import time
from collections.abc import Iterable

from pace_fabric.runtime.connection import FabricLink, Incoming
from pace_fabric.runtime.messages import BucketNotice, ChainCut, RelayAnswer, RelayNotice, RelayOrder
from pace_fabric.runtime.weight_sync.buckets import BucketTaker

# Why a host has no weights that would have come too late.
LATE = "no weights in time"
ReceiverNotice = RelayAnswer | BucketNotice | RelayNotice | ChainCut


class DeliveryChain:
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
    def unanswered(self) -> list[str]:
        """Hosts that have said nothing yet."""
        known = {*self.answered, *self.had, *self.gone}
        return [name for name in self._finished if name not in known]

    @property
    def waits(self) -> bool:
        """Whether a host that is served does not have the weights yet."""
        return any(name not in self.had for name in self.served)

    def has_finished(self, bucket: int) -> bool:
        """Whether all that are served have finished a bucket."""
        return all(name in self.had or self._finished[name] > bucket for name in self.served)

    def hear(self, name: str, notice: ReceiverNotice) -> None:
        """Take what a host says; a host that has the weights may leave."""
        if name in self.had or name in self.gone:
            return
        if isinstance(notice, BucketNotice):
            self._finished[name] = max(self._finished[name], notice.bucket + 1)
        elif isinstance(notice, ChainCut):
            self._begin_again(name, 1)
        elif isinstance(notice, RelayNotice) and notice.again:
            if self._direct or self.served[:1] == [name]:
                self.gone[name] = notice.reason  # before it is the sender: there is no other way
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

    def give_up(self, names: Iterable[str]) -> None:
        """Take those of these hosts that have nothing for gone: there is no more time for them."""
        late = [name for name in names if name not in self.had]
        for name in late:
            self.gone.setdefault(name, LATE)
        self.untold += late
        self.served = [name for name in self.served if name not in late]


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
