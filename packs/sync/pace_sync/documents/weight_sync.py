"""The weight-sync document: tensors of one sender, its receivers, their links and their own work."""

from itertools import accumulate
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pace.documents.base import Bytes, Document, JsonDocument, load, parse, repeated
from pace.documents.cost_document import NonNegative, Positive
from pace.documents.profile import ELEMENT_BYTES, MAX_TOTAL_BYTES, MAX_TOTAL_S, DType, Name
from pace_sync.errors import InvalidSync

FanOut = Literal["relay", "direct"]


# Most buckets that a credit may make necessary, and most pairs of such a bucket and a receiver.
MOST_BUCKETS = 100_000
MOST_PAIRS = 10_000_000


def _is_none(value: object) -> bool:
    return value is None


class SyncTensor(Document):
    """One tensor as it is sent.

    Attributes
    ----------
    block_bytes
        Size of a block that is never cut, such as rows that are quantized together (default: one element).
    work
        Kinds of work that receivers do on it, such as "copy", "cast", "quantize" or "load".
    """

    refused_as = InvalidSync

    name: Name
    size_bytes: Bytes
    dtype: DType = "bfloat16"
    block_bytes: Annotated[int | None, Field(gt=0, le=MAX_TOTAL_BYTES, exclude_if=_is_none)] = None
    work: tuple[Name, ...] = ("copy",)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        element = ELEMENT_BYTES[self.dtype]
        if self.size_bytes % element:
            raise ValueError(f"{self.size_bytes} bytes are no multiple of {self.dtype}'s {element} bytes")
        if self.block_bytes is not None and self.block_bytes % element:
            raise ValueError(
                f"block_bytes {self.block_bytes} is no multiple of {self.dtype}'s {element} bytes"
            )
        if (twice := repeated(self.work)) is not None:
            raise ValueError(f'work "{twice}" is listed twice')
        return self

    @property
    def cut_bytes(self) -> int:
        """The size of a block; of one element if none is given."""
        return self.block_bytes or ELEMENT_BYTES[self.dtype]


class WorkRate(Document):
    """Time of one kind of work at a receiver, in seconds per byte."""

    refused_as = InvalidSync

    kind: Name
    seconds_per_byte: NonNegative


class SyncHost(Document):
    """The sender's or a receiver's link: one rate for each direction."""

    refused_as = InvalidSync

    bytes_per_s: Positive


class SyncReceiver(SyncHost):
    """One receiver.

    Attributes
    ----------
    work
        Time of each kind of work.
    bucket_s
        Fixed time of work for each bucket, in seconds.
    hop_s
        With fan-out "relay": seconds by which a byte arrives here later than at the previous host.
    """

    name: Name
    work: tuple[WorkRate, ...] = ()
    bucket_s: NonNegative = 0.0
    hop_s: NonNegative = 0.0

    @model_validator(mode="after")
    def _known_work(self) -> Self:
        if (twice := repeated(rate.kind for rate in self.work)) is not None:
            raise ValueError(f'work "{twice}" has two rates')
        return self


class WeightSync(JsonDocument):
    """Weights that go from one sender to all receivers, while these wait.

    A document that was built is valid: names are unique, each receiver has a rate for each kind of work,
    blocks fit the credit, and the tensors fit into 100,000 buckets of the credit's size (fewer for more than
    100 receivers).

    Attributes
    ----------
    fan_out
        "relay": each receiver forwards every byte to the next, so the sender's link carries the weights once.
        "direct": the sender sends to all receivers at the same time, and they share its link.
    message_s
        Fixed time of each bucket on the link, in seconds.
    credit_bytes
        Limit on bytes that were sent and that some receiver has not finished; null for no limit.
    """

    refused_as = InvalidSync

    schema_version: Literal[1] = 1
    name: Name
    tensors: Annotated[tuple[SyncTensor, ...], Field(min_length=1)]
    sender: SyncHost
    receivers: Annotated[tuple[SyncReceiver, ...], Field(min_length=1)]
    fan_out: FanOut = "relay"
    message_s: NonNegative = 0.0
    credit_bytes: Annotated[int | None, Field(gt=0, lt=2**63)] = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for kind, names in (("tensor", self.tensors), ("receiver", self.receivers)):
            if (twice := repeated(each.name for each in names)) is not None:
                raise ValueError(f'two {kind}s are named "{twice}"')
        total = sum(tensor.size_bytes for tensor in self.tensors)
        if total > MAX_TOTAL_BYTES:
            raise ValueError("tensors have more than 2^53 bytes together")
        wanted = {kind: tensor.name for tensor in self.tensors for kind in tensor.work}
        for receiver in self.receivers:
            known = {rate.kind for rate in receiver.work}
            for kind, tensor in wanted.items():
                if kind not in known:
                    raise ValueError(
                        f'tensor "{tensor}" needs work "{kind}", '
                        f'for which receiver "{receiver.name}" has no rate'
                    )
        if self.credit_bytes is not None:
            for each in self.tensors:
                if min(each.cut_bytes, each.size_bytes) > self.credit_bytes:
                    raise ValueError(
                        f'tensor "{each.name}" is cut after {each.cut_bytes} bytes, '
                        f"more than credit_bytes {self.credit_bytes}"
                    )
            most = max(min(MOST_BUCKETS, MOST_PAIRS // len(self.receivers)), 1)
            if (fewest := -(-total // self.credit_bytes)) > most:
                raise ValueError(
                    f"credit_bytes {self.credit_bytes} makes at least {fewest:,} buckets, more than {most:,}:"
                    f" set credit_bytes to at least {-(-total // most)}"
                )
        worst = total * (
            self.seconds_per_byte
            + max(sum(rate.seconds_per_byte for rate in each.work) for each in self.receivers)
        )
        if worst > MAX_TOTAL_S:
            raise ValueError(f"the weights take {worst:.3g} s, more than {MAX_TOTAL_S:g} s")
        return self

    @property
    def seconds_per_byte(self) -> float:
        """Time of a byte on the slowest link: of a chain, or of a sender who sends it to each receiver."""
        copies = len(self.receivers) if self.fan_out == "direct" else 1
        slowest = min(receiver.bytes_per_s for receiver in self.receivers)
        return max(copies / self.sender.bytes_per_s, 1 / slowest)

    @property
    def lags_s(self) -> tuple[float, ...]:
        """Seconds from a byte's departure at the sender to its arrival at each receiver."""
        if self.fan_out == "direct":
            return (0.0,) * len(self.receivers)
        return tuple(accumulate(receiver.hop_s for receiver in self.receivers))


def parse_weight_sync(document: bytes | str) -> WeightSync:
    """Read a weight-sync document from JSON; raises InvalidSync with one line per fault."""
    return parse(WeightSync, document)


def load_weight_sync(path: str | Path) -> WeightSync:
    """Read a weight-sync document from a JSON file; raises InvalidSync and OSError."""
    return load(parse_weight_sync, path, InvalidSync)
