"""Profiles for the service's tests."""

from typing import Any


def layered_profile(num_layers: int, *, name: str = "layered", duration_s: float = 0.001) -> dict[str, Any]:
    """Return a chain of layers on one stream, one gradient each."""
    layers = range(num_layers)
    backward = [
        {
            "name": f"bwd/{layer}",
            "duration_s": duration_s,
            "stream": "compute",
            "deps": [f"bwd/{layer + 1}"] if layer + 1 < num_layers else [],
        }
        for layer in reversed(layers)
    ]
    forward = [
        {
            "name": f"fwd/{layer}",
            "duration_s": duration_s / 2,
            "stream": "compute",
            "deps": [f"fwd/{layer - 1}"] if layer else [],
            "waits_for": [f"{layer}.weight"],
        }
        for layer in layers
    ]
    return {
        "schema_version": 1,
        "name": name,
        "workers": 4,
        "ops": [*backward, *forward],
        "gradients": [
            {
                "name": f"{layer}.weight",
                "size_bytes": 4 * (1000 + 7919 * layer % 100_000),
                "dtype": "float32",
                "producer": f"bwd/{layer}",
            }
            for layer in reversed(layers)
        ],
        "allreduce": {"kind": "affine", "latency_s": 0.0003, "seconds_per_byte": 1e-9},
    }
