"""What users import from the runtime: the names of each front door, and nothing else, are promised."""

import importlib
import importlib.util

import pytest

_OPTIONS = ["AllReduce", "Plan", "Replanning", "Tune"]

NAMES = {
    "accelerate": [*_OPTIONS, "attach"],
    "ddp": [*_OPTIONS, "AttachedOptimizer", "attach", "attached"],
    "fsdp": [
        *_OPTIONS,
        "Fsdp2Settings",
        "ReplicaOptimizer",
        "apply",
        "attach",
        "attached",
        "load_fsdp2_settings",
    ],
    "horovod": [*_OPTIONS, "DistributedOptimizer", "init"],
    "lightning": [*_OPTIONS, "PaceReport", "PaceStrategy"],
    "loggers": ["log_to_tensorboard", "log_to_wandb", "metrics_of"],
    "metrics": ["RuntimeCollector"],
    "profiler": [
        "AllReduceMeasurement",
        "Capture",
        "CaptureReport",
        "Contention",
        "gradient_bytes",
        "horovod_network",
        "measure_allreduce",
        "measure_contention",
        "torch_network",
    ],
    "torch": [
        *_OPTIONS,
        "DistributedOptimizer",
    ],
    "transformers": [*_OPTIONS, "PaceCallback", "PaceMixin"],
}


@pytest.mark.parametrize("door", NAMES)
def test_a_front_door_exports_these_names(door: str) -> None:
    """A change of this list is a change of what training scripts may import."""
    if door in ("accelerate", "horovod", "lightning", "transformers") and not importlib.util.find_spec(door):
        pytest.skip(f"{door} is not installed")
    module = importlib.import_module(f"pace.runtime.{door}")
    assert sorted(module.__all__) == sorted(NAMES[door])
    assert all(hasattr(module, name) for name in NAMES[door])
