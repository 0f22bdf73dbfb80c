"""Sync plans: how new weights, shards and deltas go to rollout engines, and how DiLoCo averages fragments."""

import json
import zlib
from typing import Any

from pace.api.errors import ContentTooLarge
from pace.api.questions.kind import Question, QuestionKind, ReadLimits, Tell
from pace.api.questions.reading import about_document
from pace_sync.documents.delta_sync import DeltaSync
from pace_sync.documents.outer_sync import OuterSync
from pace_sync.documents.resharding import Resharding
from pace_sync.documents.sync_problem import AnySync, parse_sync_problem
from pace_sync.planning.box_classes import num_cells
from pace_sync.planning.deltas import plan_deltas
from pace_sync.planning.plan import plan_sync
from pace_sync.service.documents import SyncPlanRequest, SyncPlanResource, SyncPlanSummary

# Half a minute of planning, where layers are whole and there are two links.
MOST_LAYER_STEPS = 5_000_000
# The planner marks for each box into which shards cut a tensor which hosts hold or want it.
MOST_BOX_HOSTS = 30_000_000


def _read(request: SyncPlanRequest, limits: ReadLimits) -> Question:
    sync = request.sync
    _refuse_large(sync, limits)
    return Question(
        kind=KIND.name,
        options=json.dumps({"torchft": True} if request.torchft else {}),
        **about_document(sync.sha256, sync.name, sync.to_json().decode()),
    )


def _refuse_large(sync: AnySync, limits: ReadLimits) -> None:
    if isinstance(sync, OuterSync):
        counts = {"layers": len(sync.layers)}
    elif isinstance(sync, Resharding):
        boxes = sum(len(each.shards) for each in sync.senders) + sum(
            len(each.wants) for each in sync.receivers
        )
        counts = {"tensors": len(sync.tensors), "boxes": boxes}
    else:
        counts = {"tensors": len((sync.sync if isinstance(sync, DeltaSync) else sync).tensors)}
    for what, count in counts.items():
        if count > limits.max_gradients:
            detail = f"the document has {count} {what}; this service takes at most {limits.max_gradients}"
            raise ContentTooLarge(detail)
    if isinstance(sync, OuterSync) and len(sync.layers) * sync.period_steps > MOST_LAYER_STEPS:
        raise ContentTooLarge(
            f"the document has {len(sync.layers)} layers and period_steps {sync.period_steps}; "
            f"their product may be at most {MOST_LAYER_STEPS}"
        )
    if isinstance(sync, Resharding):
        cells, hosts = num_cells(sync), len(sync.senders) + len(sync.receivers)
        if cells * hosts > MOST_BOX_HOSTS:
            raise ContentTooLarge(
                f"shards of {hosts} senders and receivers cut the tensors into {cells} boxes; "
                f"the product of both numbers may be at most {MOST_BOX_HOSTS}"
            )


def _answer(sync_document: bytes, options: str, tell: Tell) -> bytes:
    del tell  # the planners cannot tell how far they are
    sync = parse_sync_problem(zlib.decompress(sync_document))
    if isinstance(sync, OuterSync):
        # The serving process, which only names this function, does without the planners of large documents.
        from pace_sync.planning.outer.plan import plan_outer

        return plan_outer(sync, **json.loads(options)).to_json()
    if isinstance(sync, Resharding):
        from pace_sync.planning.reshard import plan_reshard

        return plan_reshard(sync).to_json()
    return (plan_deltas(sync) if isinstance(sync, DeltaSync) else plan_sync(sync)).to_json()


_WORK = [{"kind": "copy", "seconds_per_byte": 1e-10}, {"kind": "quantize", "seconds_per_byte": 4e-10}]
_EXAMPLE = {
    "schema_version": 1,
    "name": "two engines",
    "tensors": [
        {"name": f"layer {number}", "size_bytes": 4_000_000, "work": ["copy", "quantize"]}
        for number in range(3)
    ],
    "sender": {"bytes_per_s": 1.25e9},
    "receivers": [
        {"name": f"engine {number}", "bytes_per_s": 1.25e9, "work": _WORK, "hop_s": 1e-5}
        for number in range(2)
    ],
    "message_s": 1e-4,
}
# Two buckets whose best orders differ between the engines: all orders are tried.
_ENUMERATED = _EXAMPLE | {
    "tensors": [
        {"name": "layer 0", "size_bytes": 4_000_000, "work": ["quantize"]},
        {"name": "layer 1", "size_bytes": 5_000_000, "work": ["copy"]},
    ],
    "receivers": [
        {
            "name": f"engine {number}",
            "bytes_per_s": 1.25e9,
            "work": [
                {"kind": "copy", "seconds_per_byte": copy},
                {"kind": "quantize", "seconds_per_byte": quantize},
            ],
            "hop_s": 1e-5,
        }
        for number, (copy, quantize) in enumerate([(5e-10, 2e-9), (2e-9, 1e-10)])
    ],
}
# More buckets than have all their orders tried, and more bytes than the credit: both searches.
_SEARCHED = _EXAMPLE | {
    "tensors": [
        {"name": f"layer {number}", "size_bytes": 1_000_000 * (1 + 5 * number % 7), "work": ["copy"]}
        for number in range(12)
    ],
    "credit_bytes": 8_000_000,
}
EXAMPLE_OUTER = {
    "schema_version": 1,
    "name": "three layers",
    "layers": [{"name": f"layer {number}", "size_bytes": 40_000_000} for number in range(3)],
    "workers": 4,
    "step_s": 0.1,
    "period_steps": 20,
    "max_delay_steps": 5,
    "links": [{"name": "wan", "bytes_per_s": 1e8, "latency_s": 0.001}],
    "cutting": "between-layers",
}
EXAMPLE_RESHARDING: dict[str, Any] = {
    "schema_version": 1,
    "name": "rows to columns",
    "tensors": [{"name": "up", "shape": [4096, 1024]}, {"name": "down", "shape": [1024, 4096]}],
    "senders": [
        {
            "name": f"trainer {rank}",
            "bytes_per_s": 1.25e9,
            "shards": [
                {"tensor": "up", "begin": [2048 * (rank % 2), 0], "shape": [2048, 1024]},
                {"tensor": "down", "begin": [512 * (rank % 2), 0], "shape": [512, 4096]},
            ],
        }
        for rank in range(4)
    ],
    "receivers": [
        {
            "name": f"engine {rank}",
            "bytes_per_s": 5e9,
            "wants": [
                {"tensor": "up", "begin": [0, 512 * rank], "shape": [4096, 512]},
                {"tensor": "down", "begin": [0, 2048 * rank], "shape": [1024, 2048]},
            ],
            "hop_s": 1e-5,
        }
        for rank in range(2)
    ],
}
# Where each byte has one sender, nothing is shared out by SciPy, which a worker loads only if it must.
_HELD_ONCE = EXAMPLE_RESHARDING | {"senders": EXAMPLE_RESHARDING["senders"][:2]}
EXAMPLE_DELTAS = {
    "schema_version": 1,
    "sync": _EXAMPLE,
    "changed": 0.05,
    "missed": 0.001,
    "hash_s_per_byte": 1e-10,
    "base_s_per_byte": 2e-10,
}

KIND = QuestionKind(
    name="sync",
    noun="sync plan",
    path="/v1/sync-plans",
    tag="Sync plans",
    title="Plan weight synchronization or streaming DiLoCo",
    description="For a weight-sync document, choose buckets and their order for the shortest pause of "
    "rollout engines. For a resharding document, choose who sends which shards to whom. For a delta-sync "
    "document, choose between deltas and whole weights. For an outer-sync document, choose fragments, send "
    "steps and delays for the highest utilization. No plan beats the bound. An equal request gets the stored "
    "plan.",
    example={"sync": _EXAMPLE},
    further_examples={
        "resharding": {"sync": EXAMPLE_RESHARDING},
        "delta-sync": {"sync": EXAMPLE_DELTAS},
        "outer-sync": {"sync": EXAMPLE_OUTER, "torchft": True},
    },
    request=SyncPlanRequest,
    resource=SyncPlanResource,
    summary=SyncPlanSummary,
    columns={"name": "input_name", "sync_sha256": "input_sha256"},
    parts={"sync": parse_sync_problem},
    read=_read,
    answer=_answer,
    samples=(
        (_EXAMPLE, "{}"),
        (_ENUMERATED, "{}"),
        (_SEARCHED, "{}"),
        (_HELD_ONCE, "{}"),
        # Deltas use the same compiled code as buckets, and their example takes ten times as long.
        (EXAMPLE_OUTER, "{}"),
    ),
    simulates=False,
)
KINDS = (KIND,)
