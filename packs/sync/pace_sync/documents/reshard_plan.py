"""The reshard plan: which sender sends which boxes along which receivers, how fast, and the bound."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pace.documents.base import Bytes, Document, JsonDocument, load, parse
from pace.documents.cost_document import NonNegative, Positive
from pace.documents.profile import Name
from pace_sync.documents.resharding import TensorBox, WholeTensor
from pace_sync.errors import InvalidSync


class ShardStream(Document):
    """Boxes that one sender sends along one chain of receivers.

    Attributes
    ----------
    receivers
        Names of receivers in the order of the chain. The sender sends to the first one, and each forwards
        bytes to the next.
    bytes_per_s
        Limit on the sender's rate, so that all streams arrive together; null if fair shares are as good.
    end_s
        Time at which its last byte has left the sender, in seconds.
    """

    refused_as = InvalidSync

    sender: Name
    receivers: Annotated[tuple[Name, ...], Field(min_length=1)]
    boxes: Annotated[tuple[TensorBox, ...], Field(min_length=1)]
    size_bytes: Annotated[int, Field(gt=0, lt=2**63)]
    bytes_per_s: Positive | None
    end_s: NonNegative


class ReshardBound(Document):
    """Bound on every plan, and the hosts that prove it.

    Attributes
    ----------
    kind
        "senders": bytes that no other sender holds must leave these senders once, and arrive a hop later.
        "link": the receiver's bytes must cross its link, and arrive a hop later. "work": the receiver must
        work on its bytes.
    hosts
        Names of the senders, or of the receiver.
    """

    refused_as = InvalidSync

    kind: Literal["senders", "link", "work"]
    hosts: tuple[Name, ...]
    bound_s: NonNegative


class ReshardRival(Document):
    """Pause of another rule, in the same model."""

    refused_as = InvalidSync

    rule: Literal["gather, then broadcast", "first holder to each receiver"]
    pause_s: NonNegative


class ReshardPrediction(Document):
    """Predicted times of the plan.

    Attributes
    ----------
    pause_s
        Time from the first byte until the last receiver has finished, in seconds.
    finished_s
        Time at which each receiver has finished, in the document's order, in seconds.
    gap
        ``pause_s`` divided by the bound, minus 1.
    """

    refused_as = InvalidSync

    pause_s: NonNegative
    finished_s: tuple[NonNegative, ...]
    gap: NonNegative


class ReshardPlan(JsonDocument):
    """Streams from senders to receivers that cover what each receiver wants once."""

    refused_as = InvalidSync

    schema_version: Literal[1] = 1
    problem_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    version: str
    bucket_bytes: Annotated[Bytes, Field(gt=0)]
    tensors: tuple[WholeTensor, ...]
    streams: tuple[ShardStream, ...]
    predicted: ReshardPrediction
    bound: ReshardBound
    rivals: tuple[ReshardRival, ...]


def parse_reshard_plan(document: bytes | str) -> ReshardPlan:
    """Read a reshard plan from JSON; raises InvalidSync with one line per fault."""
    return parse(ReshardPlan, document)


def load_reshard_plan(path: str | Path) -> ReshardPlan:
    """Read a reshard plan from a JSON file; raises InvalidSync and OSError."""
    return load(parse_reshard_plan, path, InvalidSync)
