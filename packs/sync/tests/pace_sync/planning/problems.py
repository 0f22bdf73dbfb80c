"""Weight-sync and resharding documents for tests."""

import json
from typing import Any

from pace_sync.documents.weight_sync import WeightSync


def with_changes(document: bytes, changes: dict[str, Any]) -> str:
    """Return a JSON document with other fields; ``a__0__b`` names field b of the first element of a."""
    changed = json.loads(document)
    for path, value in changes.items():
        *inner, last = path.split("__")
        place = changed
        for name in inner:
            place = place[int(name) if name.isdecimal() else name]
        place[last] = value
    return json.dumps(changed)


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


def box(tensor: str, begin: tuple[int, ...], shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the fields of a box."""
    return {"tensor": tensor, "begin": begin, "shape": shape}


def reshard_fields(**changed: Any) -> dict[str, Any]:
    """Return four senders with rows, of which two are replicas, and two receivers with columns."""
    names = ("up", "down")
    return {
        "name": "small",
        "tensors": [{"name": name, "shape": [64, 48]} for name in names],
        "senders": [
            {
                "name": f"t{rank}",
                "bytes_per_s": 1e6,
                "shards": [box(name, (32 * (rank % 2), 0), (32, 48)) for name in names],
            }
            for rank in range(4)
        ],
        "receivers": [
            {
                "name": f"r{rank}",
                "bytes_per_s": 3e6,
                "wants": [box(name, (0, 24 * rank), (64, 24)) for name in names],
            }
            for rank in range(2)
        ],
    } | changed
