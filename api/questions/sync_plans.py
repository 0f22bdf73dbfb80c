"""Sync plans: how new weights go to rollout engines, and how workers of DiLoCo average fragments."""

import json
import zlib

from pace.api.errors import ContentTooLarge
from pace.api.questions.kind import Kind, Question, ReadLimits, Tell
from pace.api.questions.reading import about_document
from pace.client.sync_documents import SyncPlanRequest, SyncPlanResource, SyncPlanSummary
from pace.documents.sync.outer_sync import OuterSync
from pace.documents.sync.sync_problem import parse_sync_problem
from pace.sync.plan import plan_sync

# Half a minute of planning, where layers are whole and there are two links.
MOST_LAYER_STEPS = 5_000_000


def _read(request: SyncPlanRequest, limits: ReadLimits) -> Question:
    sync = request.sync
    what, parts = ("layers", sync.layers) if isinstance(sync, OuterSync) else ("tensors", sync.tensors)
    if len(parts) > limits.max_gradients:
        detail = f"the document has {len(parts)} {what}; this service takes {limits.max_gradients}"
        raise ContentTooLarge(detail)
    if isinstance(sync, OuterSync) and len(parts) * sync.period_steps > MOST_LAYER_STEPS:
        raise ContentTooLarge(
            f"the document has {len(parts)} layers and period_steps {sync.period_steps}; "
            f"this service takes a product of {MOST_LAYER_STEPS}"
        )
    return Question(
        kind=KIND.name,
        options=json.dumps({"torchft": True} if request.torchft else {}),
        **about_document(sync.sha256, sync.name, sync.to_json().decode()),
    )


def _answer(sync_document: bytes, options: str, tell: Tell) -> bytes:
    del tell  # the planners cannot tell how far they are
    sync = parse_sync_problem(zlib.decompress(sync_document))
    if isinstance(sync, OuterSync):
        from pace.sync.outer.plan import plan_outer  # the serving process only names this function

        return plan_outer(sync, **json.loads(options)).to_json()
    return plan_sync(sync).to_json()


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

KIND = Kind(
    name="sync",
    noun="sync plan",
    path="/v1/sync-plans",
    title="Plan weight synchronization or streaming DiLoCo",
    description="For a weight-sync document, choose buckets and their order for the shortest pause of "
    "rollout engines. For an outer-sync document, choose fragments, send steps and delays for the highest "
    "utilization. No plan beats the bound. An equal request gets the stored plan.",
    example={"sync": _EXAMPLE},
    request=SyncPlanRequest,
    resource=SyncPlanResource,
    summary=SyncPlanSummary,
    columns={"name": "input_name", "sync_sha256": "input_sha256"},
    parts={"sync": parse_sync_problem},
    read=_read,
    answer=_answer,
    samples=((_EXAMPLE, "{}"), (_SEARCHED, "{}"), (EXAMPLE_OUTER, "{}")),
    simulates=False,
)
