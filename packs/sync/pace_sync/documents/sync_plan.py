"""The sync plan: buckets in the order in which they are sent, when, and what no other plan can beat."""

import hashlib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pace.documents.base import Bytes, Document, Index, JsonDocument, load, parse
from pace.documents.cost_document import NonNegative, Positive
from pace.documents.profile import Name
from pace_sync.errors import InvalidSync

# The checker tries all of them for each number of buckets.
MOST_RATIOS = 128


class BucketPart(Document):
    """A stretch of a tensor's bytes."""

    refused_as = InvalidSync

    tensor: Name
    offset_bytes: Bytes
    size_bytes: Annotated[int, Field(gt=0, lt=2**63)]


class SyncBucket(Document):
    """Bytes that are sent as one message.

    Attributes
    ----------
    start_s, end_s
        Start and end of its transfer on the link, in seconds.
    finished_s
        Time at which each receiver has finished its work on it, in seconds.
    """

    refused_as = InvalidSync

    parts: Annotated[tuple[BucketPart, ...], Field(min_length=1)]
    start_s: NonNegative
    end_s: NonNegative
    finished_s: tuple[NonNegative, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of its parts."""
        return sum(part.size_bytes for part in self.parts)


class SyncOrderBound(Document):
    """Bound on every order of these buckets; see ``pace_sync.solver.broadcast``."""

    refused_as = InvalidSync

    kind: Literal["johnson", "credit", "alone"]
    receiver: Index
    bound_s: NonNegative


class SyncBound(Document):
    """Bound on every plan; see ``pace_sync.solver.bucket_bounds``.

    Attributes
    ----------
    num_buckets
        Number of buckets for which the bound is smallest.
    ratios
        Ratios of the weights in the proof.
    """

    refused_as = InvalidSync

    bound_s: NonNegative
    num_buckets: Index
    ratios: Annotated[tuple[Positive, ...], Field(max_length=MOST_RATIOS)]


class RivalRule(Document):
    """Pause of another rule for buckets; null if its buckets exceed the credit.

    Attributes
    ----------
    largest_bytes
        Size of the buckets, which are filled in the order of the list; null for one message per tensor.
    """

    refused_as = InvalidSync

    rule: Literal["tensor by tensor", "fixed buckets"]
    largest_bytes: Bytes | None
    num_buckets: Index
    pause_s: NonNegative | None


class SyncPrediction(Document):
    """Predicted times of the plan.

    Attributes
    ----------
    pause_s
        Time from the first byte until the last receiver has finished the last bucket, in seconds.
    gap
        ``pause_s`` divided by the bound, minus 1.
    link_s, work_s
        Busy time of the link, and of the receiver with the most work, in seconds.
    """

    refused_as = InvalidSync

    pause_s: NonNegative
    gap: NonNegative
    link_s: NonNegative
    work_s: NonNegative


class SyncPlan(JsonDocument):
    """Buckets in the order in which they are sent."""

    refused_as = InvalidSync

    schema_version: Literal[1] = 1
    problem_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    version: str
    method: str
    credit_bytes: Annotated[int | None, Field(gt=0, lt=2**63)] = None
    buckets: tuple[SyncBucket, ...]
    predicted: SyncPrediction
    order_bound: SyncOrderBound
    bound: SyncBound
    rivals: tuple[RivalRule, ...]

    @model_validator(mode="after")
    def _each_byte_once(self) -> Self:
        sent: dict[str, list[tuple[int, int]]] = {}
        for number, bucket in enumerate(self.buckets):
            for part in bucket.parts:
                sent.setdefault(part.tensor, []).append((part.offset_bytes, part.size_bytes))
            if self.credit_bytes is not None and bucket.size_bytes > self.credit_bytes:
                raise ValueError(
                    f"bucket {number} has {bucket.size_bytes} bytes, credit_bytes is {self.credit_bytes}"
                )
        for name, stretches in sent.items():
            at = 0
            for offset, size in sorted(stretches):
                if offset != at:
                    what = "are sent twice" if offset < at else "are not sent"
                    raise ValueError(f'tensor "{name}": bytes {min(at, offset)} to {max(at, offset)} {what}')
                at += size
        return self

    @cached_property
    def layout_sha256(self) -> str:
        """SHA-256 of what both ends must agree on: which bytes each bucket carries."""
        return layout_sha256(
            [(part.tensor, part.offset_bytes, part.size_bytes) for part in b.parts] for b in self.buckets
        )


def layout_sha256(buckets: Iterable[Iterable[tuple[str, int, int]]]) -> str:
    """Return the SHA-256 of buckets, each with the tensor, offset and size in bytes of its parts."""
    told = hashlib.sha256()
    for bucket in buckets:
        for name, offset, size in bucket:
            encoded = name.encode()
            told.update(b"%d:%b %d %d\n" % (len(encoded), encoded, offset, size))
        told.update(b"\n")
    return told.hexdigest()


def parse_sync_plan(document: bytes | str) -> SyncPlan:
    """Read a sync plan from JSON; raises InvalidSync with one line per fault."""
    return parse(SyncPlan, document)


def load_sync_plan(path: str | Path) -> SyncPlan:
    """Read a sync plan from a JSON file; raises InvalidSync and OSError."""
    return load(parse_sync_plan, path, InvalidSync)
