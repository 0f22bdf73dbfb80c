"""A job of ``fully_shard``: its model and batches, and what its loop notes, with and without PACE."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.runtime.attached_loops import AttachedJob

WIDTH = 10


class Block(nn.Module):
    """A residual block whose weights no number of shards divides; may be left out, or run twice."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, 2 * WIDTH + 1)
        self.narrow = nn.Linear(2 * WIDTH + 1, WIDTH)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two layers."""
        changed: torch.Tensor = self.narrow(torch.tanh(self.wide(x)))
        return x + self.scale * changed


class Net(nn.Module):
    """Blocks between two layers that belong to the outermost unit."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor, *, order: tuple[int, ...] = (0, 1, 2)) -> torch.Tensor:
        """Run the blocks in this order."""
        hidden = self.first(x)
        for number in order:
            hidden = self.blocks[number](hidden)
        output: torch.Tensor = self.last(hidden)
        return output


class Job(AttachedJob):
    """A loop with ``fully_shard``."""

    steps = 4
    width = 6

    def wrapped(self, mesh: DeviceMesh | None = None, **options: Any) -> Any:
        """Make the model, sharded."""
        torch.manual_seed(3)
        self.model = model = Net()
        mesh = mesh or mesh_of(2)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, **options)
        return fully_shard(model, mesh=mesh, **options)

    def front_door(self) -> Callable[..., Any]:
        """Return the ``attach`` of ``fully_shard``."""
        from pace.runtime.fsdp import attach

        return attach

    def train(self, model: Any, optimizer: Any, steps: int | None = None, **named: Any) -> None:
        """Take some usual steps."""
        for step in range(steps or self.steps):
            optimizer.zero_grad()
            self.backward(model, step, **named)
            optimizer.step()


@functools.cache  # a job has one, and connecting takes longer than training
def mesh_of(replicas: int) -> DeviceMesh:
    """Return all ranks as replicas of shards."""
    shape = (replicas, dist.get_world_size() // replicas)
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards"))
