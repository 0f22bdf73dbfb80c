"""What a sync plan can be asked for: new weights for rollout engines, or streaming DiLoCo."""

import json
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from pace.documents.sync.outer_plan import OuterPlan
from pace.documents.sync.outer_sync import OuterSync, parse_outer_sync
from pace.documents.sync.sync_plan import SyncPlan
from pace.documents.sync.weight_sync import WeightSync, parse_weight_sync


def _kind_of(document: Any) -> str:
    """Return the tag of a document, going by its fields."""
    if isinstance(document, OuterSync):
        return "outer-sync"
    is_outer = isinstance(document, dict) and "layers" in document and "tensors" not in document
    return "outer-sync" if is_outer else "weight-sync"


SyncProblem = Annotated[
    Annotated[WeightSync, Tag("weight-sync")] | Annotated[OuterSync, Tag("outer-sync")],
    Discriminator(_kind_of),
]
PlanOfSync = SyncPlan | OuterPlan


def parse_sync_problem(document: bytes | str) -> WeightSync | OuterSync:
    """Read a weight-sync or an outer-sync document from JSON; raises InvalidSync with one line per fault."""
    try:
        fields = json.loads(document)
    except (ValueError, RecursionError):
        fields = None
    return parse_outer_sync(document) if _kind_of(fields) == "outer-sync" else parse_weight_sync(document)
