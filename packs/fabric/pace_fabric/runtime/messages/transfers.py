"""What a host's store holds goes to other hosts, is added up, and is forgotten."""

from typing import Annotated, Literal

from pydantic import Field

from pace.documents.base import Document
from pace_fabric.runtime.update_records import Amount, Count, Finite, Momentum, NumberFormat, Text, UpdateForm


class TransferIntro(Document):
    """Precedes a transfer's blocks between hosts, or between a worker and its daemon."""

    kind: Literal["transfer"] = "transfer"
    transfer: Count
    key: Text
    size_bytes: Count
    version: Count = 0
    host: Text = "-"
    form: UpdateForm = "float32"


class TransferOrder(Document):
    """Send what is stored as `key` to another host; `once` forgets it afterwards."""

    kind: Literal["send"] = "send"
    transfer: Count
    key: Text
    host: Text
    address: Text
    port: Count
    rate: Amount | None = None
    once: bool = False


class RateOrder(Document):
    """Send to a host at most this fast from now on; None for no limit."""

    kind: Literal["rate"] = "rate"
    host: Text
    rate: Amount | None = None


class AdditionOrder(Document):
    """Store the sum of factors times parts, added in this order, in float32.

    Attributes
    ----------
    momentum
        With one, two sums are stored, one after the other: what the model moves by, and what the history
        becomes, when the parts are steps of their own with this momentum.
    form
        Number format of what is stored.
    """

    kind: Literal["add"] = "add"
    key: Text
    parts: Annotated[tuple[Text, ...], Field(min_length=1)]
    factors: tuple[Finite, ...]
    momentum: Momentum = 0.0
    form: NumberFormat = "float32"


class ForgetOrder(Document):
    """These keys are no longer needed."""

    kind: Literal["forget"] = "forget"
    keys: tuple[Text, ...]


class ArrivalNotice(Document):
    """A transfer has arrived, or a part of it: payload bytes so far, and what these took on the wire.

    Attributes
    ----------
    recent_bytes, seconds
        What arrived since the last notice of this transfer, or since its first block.
    """

    kind: Literal["arrived"] = "arrived"
    transfer: Count
    size_bytes: Count
    wire_bytes: Count
    recent_bytes: Count
    seconds: Amount
    part: bool = False


class FailureNotice(Document):
    """A transfer, or an addition, cannot be carried out."""

    kind: Literal["failed"] = "failed"
    transfer: Count
    reason: str


TransferMessage = (
    TransferIntro | TransferOrder | RateOrder | AdditionOrder | ForgetOrder | ArrivalNotice | FailureNotice
)
