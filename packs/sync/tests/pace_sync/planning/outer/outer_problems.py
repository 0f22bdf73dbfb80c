"""Outer-sync documents for tests."""

import json
from typing import Any

from pace_sync.documents.outer_sync import OuterSync


def outer_fields(**changed: Any) -> dict[str, Any]:
    """Return the fields of an embedding and twelve equal layers, for four workers."""
    layers = [{"name": "embed", "size_bytes": 40_000_000}]
    layers += [{"name": f"layer{number}", "size_bytes": 10_000_000} for number in range(12)]
    return {
        "name": "small",
        "layers": layers,
        "workers": 4,
        "step_s": 0.1,
        "period_steps": 60,
        "max_delay_steps": 5,
        "links": [{"name": "wan", "bytes_per_s": 60e6, "latency_s": 0.001}],
    } | changed


def small_outer(**changed: Any) -> OuterSync:
    """Return the document of ``outer_fields``."""
    return OuterSync.model_validate_json(json.dumps(outer_fields(**changed)))
