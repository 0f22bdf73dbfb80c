"""Sync plans: how new weights go from a trainer to its rollout engines."""

import zlib

from pace.api.errors import ContentTooLarge
from pace.api.questions.kind import Kind, Question, ReadLimits, Tell
from pace.api.questions.reading import about_document
from pace.client.sync_documents import SyncPlanRequest, SyncPlanResource, SyncPlanSummary
from pace.documents.sync.weight_sync import parse_weight_sync
from pace.sync.plan import plan_sync


def _read(request: SyncPlanRequest, limits: ReadLimits) -> Question:
    sync = request.sync
    if len(sync.tensors) > limits.max_gradients:
        detail = f"the document has {len(sync.tensors)} tensors; this service takes {limits.max_gradients}"
        raise ContentTooLarge(detail)
    return Question(
        kind=KIND.name, options="{}", **about_document(sync.sha256, sync.name, sync.to_json().decode())
    )


def _answer(sync_document: bytes, options: str, tell: Tell) -> bytes:
    del options, tell  # there are none, and the planner cannot tell how far it is
    return plan_sync(parse_weight_sync(zlib.decompress(sync_document))).to_json()


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

KIND = Kind(
    name="sync",
    noun="sync plan",
    path="/v1/sync-plans",
    title="Plan weight synchronization",
    description="Choose buckets and their order for the shortest pause of rollout engines, with a bound that "
    "no plan beats. An equal request gets the stored plan.",
    example={"sync": _EXAMPLE},
    request=SyncPlanRequest,
    resource=SyncPlanResource,
    summary=SyncPlanSummary,
    columns={"name": "input_name", "sync_sha256": "input_sha256"},
    parts={"sync": parse_weight_sync},
    read=_read,
    answer=_answer,
    samples=((_EXAMPLE, "{}"), (_SEARCHED, "{}")),
    simulates=False,
)
