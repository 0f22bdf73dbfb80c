"""The delta-sync document and its plan: send only blocks that changed, or whole weights, and how often."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pace.documents.base import Bytes, Document, JsonDocument, load, parse
from pace.documents.cost_document import NonNegative
from pace.documents.sync.weight_sync import WeightSync
from pace.errors import InvalidSync

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
DeltaRule = Literal["anchors", "ask", "wait"]


class DeltaSync(JsonDocument):
    """Weights of one version after another, of which some blocks change.

    Attributes
    ----------
    changed
        Share of the bytes that differ from the version before, in whole blocks.
    block_bytes
        A delta carries whole blocks of this size, counted from the start of each tensor.
    missed
        Probability that a given receiver has missed a version, such as after a restart.
    hash_s_per_byte
        The sender hashes all blocks before the first byte of a version.
    base_s_per_byte
        A receiver copies and checks the version before, while a delta arrives.
    most_versions
        The most versions that a receiver may be late.
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
        "anchors": every version goes whole. "ask": every version is a delta, and a receiver that missed one
        asks for whole weights. "wait": such a receiver keeps its version until the next periodic anchor.
    mean_pause_s
        Over versions, those included in which somebody missed one.
    mean_bytes
        Expected bytes of a version, each counted once, however many receivers get it.
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
        Versions from one anchor to the next; null if anchors are sent to those who ask only.
    anchor_above_bytes
        A version of which more than these bytes changed is sent whole: then an anchor is faster.
    anchor_s, delta_s
        The pause of an anchor and of a delta.
    bound_s
        No way to bring every receiver the blocks that changed has a shorter mean pause.
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
