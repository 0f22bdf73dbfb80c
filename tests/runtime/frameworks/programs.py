"""Runs the example programs of the frameworks on ranks that are there already."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[3]


def without(*packages: str) -> pytest.MarkDecorator:
    """Skip where a package is not installed; importing it here would take seconds."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


def environment(rank: int) -> None:
    """What a launcher tells its processes; the ranks' process group is there."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(dist.get_world_size()),
        LOCAL_WORLD_SIZE=str(dist.get_world_size()),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",  # nobody listens there, nobody asks
        ACCELERATE_USE_CPU="true",
    )


def run_example(rank: int, name: str, variants: list[list[str]]) -> list[dict[str, Any]]:
    """Run an example with the arguments of each variant; return the weights of each."""
    path = ROOT / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = []
    for arguments in variants:
        environment(rank)
        weights = module.main(arguments)
        found.append({key: value.detach().numpy().copy() for key, value in weights.items()})
        torch.manual_seed(0)
    return found
