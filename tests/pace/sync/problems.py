"""Weight-sync documents for tests."""

import json
from typing import Any

from pace.documents.sync.weight_sync import WeightSync


def sync_fields(**changed: Any) -> dict[str, Any]:
    """Return the fields of four tensors to two receivers, of which the second also quantizes."""
    work = [{"kind": "copy", "seconds_per_byte": 1e-10}, {"kind": "quantize", "seconds_per_byte": 3e-10}]
    return {
        "name": "small",
        "tensors": [
            {"name": "embed", "size_bytes": 4_000_000},
            {"name": "norm", "size_bytes": 2_000},
            {"name": "up", "size_bytes": 6_000_000, "work": ["copy", "quantize"], "block_bytes": 6_000},
            {"name": "empty", "size_bytes": 0},
            {"name": "down", "size_bytes": 6_000_000, "work": ["copy", "quantize"]},
        ],
        "sender": {"bytes_per_s": 1e9},
        "receivers": [
            {"name": "left", "bytes_per_s": 5e9, "work": work},
            {"name": "right", "bytes_per_s": 5e9, "work": work, "bucket_s": 2e-4, "hop_s": 1e-4},
        ],
        "message_s": 1e-4,
    } | changed


def small_sync(**changed: Any) -> WeightSync:
    """Return the document of ``sync_fields``."""
    return WeightSync.model_validate_json(json.dumps(sync_fields(**changed)))
