"""Buckets of a distribution: where the sender's come from, and what receivers make of them."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pace.errors import ScheduleMismatch
from pace_fabric.runtime.formats.number_formats import Data
from pace_fabric.runtime.messages import RelayOrder


class WholeWanted(ScheduleMismatch):
    """A delta cannot be applied here: whole weights are needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSource:
    """The sender's bytes, bucket by bucket.

    Attributes
    ----------
    sizes
        Bytes of each bucket, in the order in which they go.
    parts
        Returns the memory of a bucket, part by part; it stays as it is until the distribution has ended.
    layout
        What the buckets hold, as text that receivers read.
    layout_sha256
        What every receiver must answer before the first byte.
    credit_bytes
        Most bytes that are under way or unfinished at a receiver; None for no limit.
    """

    sizes: Sequence[int]
    parts: Callable[[int], Iterable[memoryview]]
    layout: str
    layout_sha256: str
    credit_bytes: int | None = None


class BucketTaker(Protocol):
    """Takes the buckets of one distribution at a receiver."""

    @property
    def layout_sha256(self) -> str:
        """SHA-256 of the layout, as the receiver understands it."""

    @property
    def sender(self) -> str:
        """Name of the sender, for messages."""

    @property
    def whole(self) -> object | None:
        """What this distribution is a part of: the same object for all parts of it. None: of nothing."""

    def take(self, bucket: int, data: Data, begin: int, end: int) -> None:
        """Work on bytes of a bucket that have arrived: all of them come in order, in one thread.

        The hash of the bucket is compared after its last byte, so nothing may be given to others before
        `finish`.
        """

    def finish(self) -> Any | None:
        """Return what the weights have become; None while other parts of the whole are missing."""

    def keep(self) -> None:
        """Learn that what `finish` returned is given away; a version that was given up meanwhile is not."""

    def drop(self) -> None:
        """Forget what was taken: the sender is gone, or begins again. `take` or `finish` may be running."""


def layout_hash(text: str) -> str:
    """Return the SHA-256 of a layout's text; 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def whole_hash(sizes: Sequence[int]) -> str:
    """Return the hash of a layout that says nothing but sizes."""
    return layout_hash(",".join(map(str, sizes)))


def one_bucket(data: bytes | bytearray | memoryview) -> BucketSource:
    """Return bytes as one bucket."""
    whole = memoryview(data).cast("B")
    sizes = (len(whole),)
    return BucketSource(
        sizes=sizes, parts=lambda _bucket: [whole], layout="", layout_sha256=whole_hash(sizes)
    )


class WholeBytes:
    """Takes bytes as they are; one bucket is not copied."""

    def __init__(self, order: RelayOrder) -> None:
        self.layout_sha256 = whole_hash(order.sizes)
        self.sender = ""
        self.whole: object | None = None
        self._buckets: list[Data] = []

    def take(self, _bucket: int, data: Data, _begin: int, end: int) -> None:
        """Put a bucket that is whole behind those before it."""
        if end == len(data):
            self._buckets.append(data)

    def finish(self) -> Data:
        """Return all bytes."""
        return self._buckets[0] if len(self._buckets) == 1 else bytearray().join(self._buckets)

    def keep(self) -> None:
        """Keep nothing: the bytes were given away."""

    def drop(self) -> None:
        """Forget all bytes."""
        self._buckets = []
