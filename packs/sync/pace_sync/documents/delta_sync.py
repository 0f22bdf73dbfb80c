"""The delta-sync document and its plan: send only blocks that changed, or whole weights, and how often."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pace.documents.base import Bytes, Document, JsonDocument, load, parse
from pace.documents.cost_document import NonNegative
from pace_sync.documents.weight_sync import WeightSync
from pace_sync.errors import InvalidSync

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
DeltaRule = Literal["anchors", "ask", "wait"]


class DeltaSync(JsonDocument):
    """Weights of one version after another, of which some blocks change.

    Attributes
    ----------
    changed
        Share of the bytes that differ from the previous version, in whole blocks.
    block_bytes
        Size of a block in bytes, counted from the start of each tensor. A delta has whole blocks.
    missed
        Probability that a receiver missed a version, for example after a restart.
    hash_s_per_byte
        Sender's time to hash all blocks, before the first byte of a version, in seconds per byte.
    base_s_per_byte
        Receiver's time to copy and check the previous version, while a delta arrives, in seconds per byte.
    most_versions
        Largest number of versions that a receiver may be behind.
    """

    refused_as = InvalidSync

    schema_version: Literal[1] = 1
    sync: WeightSync
    changed: Share
    block_bytes: Annotated[Bytes, Field(gt=0)] = 64 << 10
    missed: Share = 0.0
    hash_s_per_byte: NonNegative = 0.0
    base_s_per_byte: NonNegative = 0.0
    most_versions: Annotated[int, Field(ge=1, le=1_000_000)] = 100

    @property
    def name(self) -> str:
        """The name of its weight-sync document."""
        return self.sync.name


class DeltaChoice(Document):
    """One rule, and what it costs.

    Attributes
    ----------
    rule
        "anchors": every version is sent whole. "ask": every version is a delta, and a receiver that missed
        one asks for whole weights. "wait": such a receiver keeps its version until the next periodic anchor.
    mean_pause_s
        Mean pause over all versions, in seconds, including those that a receiver missed.
    mean_bytes
        Expected bytes of a version. Each byte is counted once, however many receivers get it.
    """

    refused_as = InvalidSync

    rule: DeltaRule
    mean_pause_s: NonNegative
    mean_bytes: NonNegative


class DeltaPlan(JsonDocument):
    """The rule with the shortest mean pause.

    Attributes
    ----------
    anchor_every
        Number of versions from one anchor to the next; null if only receivers that ask get whole weights.
    anchor_above_bytes
        A version is sent whole if more than this number of bytes changed, because an anchor is then faster.
    anchor_s, delta_s
        Pause of an anchor, and of a delta, in seconds.
    bound_s
        Bound on the mean pause, in seconds: no rule that sends the changed blocks to every receiver beats it.
    """

    refused_as = InvalidSync

    schema_version: Literal[1] = 1
    problem_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    version: str
    block_bytes: Annotated[Bytes, Field(gt=0)]
    rule: DeltaRule
    anchor_every: Annotated[int | None, Field(ge=1)]
    anchor_above_bytes: Bytes
    anchor_s: NonNegative
    delta_s: NonNegative
    mean_pause_s: NonNegative
    bound_s: NonNegative
    choices: tuple[DeltaChoice, ...]


def parse_delta_sync(document: bytes | str) -> DeltaSync:
    """Read a delta-sync document from JSON; raises InvalidSync with one line per fault."""
    return parse(DeltaSync, document)


def load_delta_sync(path: str | Path) -> DeltaSync:
    """Read a delta-sync document from a JSON file; raises InvalidSync and OSError."""
    return load(parse_delta_sync, path, InvalidSync)


def parse_delta_plan(document: bytes | str) -> DeltaPlan:
    """Read a delta plan from JSON; raises InvalidSync with one line per fault."""
    return parse(DeltaPlan, document)


def load_delta_plan(path: str | Path) -> DeltaPlan:
    """Read a delta plan from a JSON file; raises InvalidSync and OSError."""
    return load(parse_delta_plan, path, InvalidSync)
