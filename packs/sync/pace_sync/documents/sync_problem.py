"""What a sync plan can be asked for: new weights for rollout engines, shards, deltas, or streaming DiLoCo."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from pace.documents.base import load
from pace_sync.documents.delta_sync import DeltaPlan, DeltaSync, parse_delta_sync
from pace_sync.documents.outer_plan import OuterPlan
from pace_sync.documents.outer_sync import OuterSync, parse_outer_sync
from pace_sync.documents.reshard_plan import ReshardPlan
from pace_sync.documents.resharding import Resharding, parse_resharding
from pace_sync.documents.sync_plan import SyncPlan
from pace_sync.documents.weight_sync import WeightSync, parse_weight_sync
from pace_sync.errors import InvalidSync

SyncKind = Literal["weight-sync", "resharding", "delta-sync", "outer-sync"]
AnySync = WeightSync | Resharding | DeltaSync | OuterSync

_CLASSES: dict[type, SyncKind] = {
    Resharding: "resharding",
    DeltaSync: "delta-sync",
    OuterSync: "outer-sync",
}
_PARSERS: dict[SyncKind, Callable[[bytes | str], AnySync]] = {
    "weight-sync": parse_weight_sync,
    "resharding": parse_resharding,
    "delta-sync": parse_delta_sync,
    "outer-sync": parse_outer_sync,
}


def sync_kind(document: Any) -> SyncKind:
    """Return the kind of a document or of its JSON object, going by its fields; "weight-sync" for others."""
    if not isinstance(document, dict):
        return _CLASSES.get(type(document), "weight-sync")
    if "tensors" in document:
        return "resharding" if "senders" in document else "weight-sync"
    if "layers" in document:
        return "outer-sync"
    return "delta-sync" if "sync" in document else "weight-sync"


SyncProblem = Annotated[
    Annotated[WeightSync, Tag("weight-sync")]
    | Annotated[Resharding, Tag("resharding")]
    | Annotated[DeltaSync, Tag("delta-sync")]
    | Annotated[OuterSync, Tag("outer-sync")],
    Discriminator(sync_kind),
]
PlanOfSync = SyncPlan | ReshardPlan | DeltaPlan | OuterPlan


def parse_sync_problem(document: bytes | str) -> AnySync:
    """Read a document of any of these kinds from JSON; raises InvalidSync with one line per fault."""
    try:
        fields = json.loads(document)
    except (ValueError, RecursionError):
        fields = None
    return _PARSERS[sync_kind(fields)](document)


def load_sync_problem(path: str | Path) -> AnySync:
    """Read a document of any of these kinds from a JSON file; raises InvalidSync and OSError."""
    return load(parse_sync_problem, path, InvalidSync)
