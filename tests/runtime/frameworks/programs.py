"""Runs the example programs of the frameworks on ranks that are there already."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.runtime.rank_pool import Failed, RankPool
from tests.runtime.training import equal_bits

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


def check_example(pool: RankPool, name: str, own: list[str], with_pace: list[str]) -> None:
    """Compare an example under PACE with the same under the framework's own DDP: no bit may differ.

    Sums of two ranks do not depend on an order. The ranks are those of other tests of the framework, which
    takes seconds to load.
    """
    assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) <= 70
    for found in pool.run(run_example, name, [own, with_pace]):
        assert not isinstance(found, Failed), found.reason
        assert equal_bits(*found)


def run_example(rank: int, name: str, variants: list[list[str]]) -> list[dict[str, Any]]:
    """Run an example with the arguments of each variant; return the weights of each."""
    if "accelerate" in sys.modules:  # a program of its own would find nothing of another job
        importlib.import_module("accelerate.state").AcceleratorState._reset_state(reset_partial_state=True)
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
