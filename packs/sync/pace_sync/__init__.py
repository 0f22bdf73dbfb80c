"""Weights for rollout engines, and streaming DiLoCo: planned with proofs, and sent as planned over a fabric.

What is exported here is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from pace.lazy_names import loads_names
from pace_sync.errors import InvalidSync

if TYPE_CHECKING:
    from pace_sync.checker.deltas import check_deltas
    from pace_sync.checker.outer_sync import check_outer
    from pace_sync.checker.resharding import check_reshard
    from pace_sync.checker.weight_sync import check_sync
    from pace_sync.documents.delta_sync import (
        DeltaPlan,
        DeltaSync,
        load_delta_plan,
        load_delta_sync,
        parse_delta_plan,
        parse_delta_sync,
    )
    from pace_sync.documents.outer_plan import OuterPlan, load_outer_plan, parse_outer_plan
    from pace_sync.documents.outer_sync import OuterSync, load_outer_sync, parse_outer_sync
    from pace_sync.documents.reshard_plan import ReshardPlan, load_reshard_plan, parse_reshard_plan
    from pace_sync.documents.resharding import Resharding, load_resharding, parse_resharding
    from pace_sync.documents.sync_plan import SyncPlan, load_sync_plan, parse_sync_plan
    from pace_sync.documents.weight_sync import WeightSync, load_weight_sync, parse_weight_sync
    from pace_sync.planning.deltas import plan_deltas
    from pace_sync.planning.outer.plan import plan_outer
    from pace_sync.planning.plan import plan_sync
    from pace_sync.planning.reshard import plan_reshard

_HOMES = {
    "pace_sync.documents.delta_sync": (
        "DeltaPlan",
        "DeltaSync",
        "load_delta_plan",
        "load_delta_sync",
        "parse_delta_plan",
        "parse_delta_sync",
    ),
    "pace_sync.documents.outer_plan": (
        "OuterPlan",
        "load_outer_plan",
        "parse_outer_plan",
    ),
    "pace_sync.documents.outer_sync": (
        "OuterSync",
        "load_outer_sync",
        "parse_outer_sync",
    ),
    "pace_sync.documents.reshard_plan": (
        "ReshardPlan",
        "load_reshard_plan",
        "parse_reshard_plan",
    ),
    "pace_sync.documents.resharding": (
        "Resharding",
        "load_resharding",
        "parse_resharding",
    ),
    "pace_sync.documents.sync_plan": (
        "SyncPlan",
        "load_sync_plan",
        "parse_sync_plan",
    ),
    "pace_sync.documents.weight_sync": (
        "WeightSync",
        "load_weight_sync",
        "parse_weight_sync",
    ),
    "pace_sync.checker.deltas": ("check_deltas",),
    "pace_sync.checker.outer_sync": ("check_outer",),
    "pace_sync.checker.resharding": ("check_reshard",),
    "pace_sync.checker.weight_sync": ("check_sync",),
    "pace_sync.planning.deltas": ("plan_deltas",),
    "pace_sync.planning.outer.plan": ("plan_outer",),
    "pace_sync.planning.plan": ("plan_sync",),
    "pace_sync.planning.reshard": ("plan_reshard",),
}

__all__ = [
    "DeltaPlan",
    "DeltaSync",
    "InvalidSync",
    "OuterPlan",
    "OuterSync",
    "ReshardPlan",
    "Resharding",
    "SyncPlan",
    "WeightSync",
    "check_deltas",
    "check_outer",
    "check_reshard",
    "check_sync",
    "load_delta_plan",
    "load_delta_sync",
    "load_outer_plan",
    "load_outer_sync",
    "load_reshard_plan",
    "load_resharding",
    "load_sync_plan",
    "load_weight_sync",
    "parse_delta_plan",
    "parse_delta_sync",
    "parse_outer_plan",
    "parse_outer_sync",
    "parse_reshard_plan",
    "parse_resharding",
    "parse_sync_plan",
    "parse_weight_sync",
    "plan_deltas",
    "plan_outer",
    "plan_reshard",
    "plan_sync",
]

__getattr__ = loads_names(__name__, _HOMES)
