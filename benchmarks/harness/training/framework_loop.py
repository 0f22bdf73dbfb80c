"""What the loops of all frameworks are: asked for iterations, they train and say when each window began.

A rank is a process that a launcher has started, one on each host. It has joined the others already, as every
contender has; frameworks use a process group that is there.
"""

import os
import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel, distributed

from benchmarks.harness.contenders import DDP_FIRST_MIB, DDP_MIB, MEBIBYTE, Framework
from benchmarks.harness.network.hosts import Host
from pace.runtime.ddp import AttachedOptimizer


class FrameworkLoop(Protocol):
    """A framework that has wrapped the model.

    Attributes
    ----------
    parallel
        What it has wrapped the model in.
    pace
        What PACE has attached to that; None under the framework's own DDP.
    """

    parallel: DistributedDataParallel
    pace: AttachedOptimizer | None

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        workers: int,
        options: dict[str, Any] | None,
    ) -> None: ...

    def train(self, scales: Sequence[float]) -> list[float]:
        """Train an iteration on each of these inputs; return the moments at which backward passes began."""


def load(framework: Framework) -> type[FrameworkLoop]:
    """Load a framework, which takes seconds, and return its loop."""
    if framework == "lightning":
        from benchmarks.harness.training.lightning_loop import LightningLoop

        return LightningLoop
    from benchmarks.harness.training.accelerate_loop import AccelerateLoop

    return AccelerateLoop


def enter(
    framework: Framework,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    workers: int,
    size_factor: float,
    options: dict[str, Any] | None,
) -> FrameworkLoop:
    """Hand model and optimizer to a framework, in a process that joined the others.

    Frameworks give DDP no bucket sizes by default, so it is torch's own defaults that are scaled like the
    gradients.

    Parameters
    ----------
    options
        PACE's, as for ``pace.runtime.ddp.attach``; None for the framework's own DDP.
    """
    warnings.simplefilter("ignore")  # advice for people, such as to load data in other processes
    first_bytes = int(DDP_FIRST_MIB * size_factor * MEBIBYTE)
    dist._DEFAULT_FIRST_BUCKET_BYTES = first_bytes  # type: ignore[attr-defined]  # torch exports it to itself
    distributed._DEFAULT_BUCKET_CAP_MB = DDP_MIB * size_factor  # type: ignore[assignment]  # fractions work
    loop = load(framework)(model, optimizer, workers, options)
    assert loop.parallel.bucket_bytes_cap == int(DDP_MIB * size_factor * MEBIBYTE)
    return loop


def launched(rank: int, on: Sequence[Host], port: int) -> None:
    """Set what a launcher tells its processes, one on each host."""
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(len(on)),
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="1",
        GROUP_RANK=str(rank),
        NODE_RANK=str(rank),
        MASTER_ADDR=on[0].address,
        MASTER_PORT=str(port),
    )
