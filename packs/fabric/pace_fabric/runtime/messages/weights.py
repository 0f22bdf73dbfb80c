"""Weights on their way from host to host: orders, hashes of blocks, and buckets."""

from typing import Annotated, Literal

from pydantic import Field

from pace.documents.base import Document
from pace_fabric.runtime.update_records import Amount, Count, Text


class RelayOrder(Document):
    """Receive weights, and hand every block on to the next host.

    Attributes
    ----------
    key
        What the intros of all buckets name.
    first_transfer
        Bucket b is this transfer + b. Blocks of a version that was given up may still be on their way: no
        two orders of a connection share a number.
    sizes
        The bytes of each bucket, in the order in which they come.
    layout
        What the buckets hold, for those who read it; empty if they are bytes and nothing else.
    host, address, port
        The next host; None for the last one.
    """

    kind: Literal["relay"] = "relay"
    key: Text
    version: Count
    first_transfer: Count
    sizes: tuple[Count, ...]
    layout: str = ""
    host: Text | None = None
    address: Text | None = None
    port: Count = 0


class RelayAnswer(Document):
    """A host is ready for an order, and what it takes the buckets to be; or why it refuses.

    Attributes
    ----------
    wants_whole
        Whether it would take whole weights instead of a delta.
    """

    kind: Literal["relay-answer"] = "relay-answer"
    key: Text
    layout_sha256: str = ""
    reason: str = ""
    wants_whole: bool = False


class ChainCut(Document):
    """A host takes an order, and cannot hand blocks on to the next host: those behind it need another way."""

    kind: Literal["cut"] = "cut"
    key: Text
    reason: str


class BlocksCall(Document):
    """A sender asks which blocks of weights a host lacks.

    Attributes
    ----------
    sha256
        Hash of every block.
    """

    kind: Literal["blocks?"] = "blocks?"
    size_bytes: Count
    block_bytes: Annotated[int, Field(gt=0, lt=2**53)]
    sha256: Annotated[tuple[Text, ...], Field(max_length=4096)]


class BlocksAnswer(Document):
    """Numbers of the blocks that a host lacks; None if it does not keep weights in blocks."""

    kind: Literal["blocks"] = "blocks"
    missing: tuple[Count, ...] | None = None


class BucketSeal(Document):
    """The hash of a bucket, which comes before or after its last byte."""

    kind: Literal["seal"] = "seal"
    key: Text
    bucket: Count
    sha256: Text


class BucketNotice(Document):
    """A host has finished its own work on a bucket."""

    kind: Literal["bucket"] = "bucket"
    key: Text
    bucket: Count


class RelayNotice(Document):
    """Whether a host received weights; if not, the reason. From a sender: why it gave up.

    Attributes
    ----------
    given_up
        Whether another sender failed, of which a part of the same version was due: sending again is in vain.
    wants_whole
        Whether it would take whole weights instead of a delta.
    again
        Whether it would take the same order by another way: the host before it is gone.
    """

    kind: Literal["relayed"] = "relayed"
    key: Text
    given_up: bool = False
    wants_whole: bool = False
    again: bool = False
    received_bytes: Count = 0
    sent_bytes: Count = 0
    seconds: Amount = 0.0
    reason: str = ""


WeightMessage = (
    RelayOrder | RelayAnswer | ChainCut | BlocksCall | BlocksAnswer | BucketSeal | BucketNotice | RelayNotice
)
