"""A job of ``fully_shard``: its model and batches, and what its loop notes, with and without PACE."""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from pace.runtime.options import Mode
from tests.runtime.training import backward, grouped

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


class Job:
    """One rank's run of a loop.

    Attributes
    ----------
    seen
        What the loop wants compared.
    """

    steps = 5

    def __init__(self, rank: int, *, attach: bool, mode: Mode = "overlap") -> None:
        self.rank = rank
        self.attach = attach
        self.seen: list[Any] = []
        self.handle: Any = None
        self.model: Any = None
        self._mode = mode

    def sharded(self, mesh: DeviceMesh | None = None, **options: Any) -> Any:
        """Make the model, sharded."""
        torch.manual_seed(3)
        self.model = model = Net()
        mesh = mesh or mesh_of(2)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, **options)
        return fully_shard(model, mesh=mesh, **options)

    def begin(
        self,
        kind: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
        mesh: DeviceMesh | None = None,
        **options: Any,
    ) -> tuple[Any, Any]:
        """Make the model and its optimizer; both are the loop's own."""
        model = self.sharded(mesh, **options)
        optimizer = kind(model.parameters(), lr=0.02)
        self.attached(model, optimizer)
        return model, optimizer

    def attached(self, model: Any, optimizer: Any, **options: Any) -> None:
        """Attach PACE, if this run is one with it."""
        if self.attach:
            from pace.runtime.fsdp import attach

            self.handle = attach(model, optimizer, mode=self._mode, timeout_s=60.0, **grouped(options))

    def batch(self, number: int) -> torch.Tensor:
        """Draw a batch of this rank."""
        return torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * number + self.rank))

    def backward(self, model: Any, number: int, factor: Any = 1.0, **named: Any) -> None:
        """Run forward and backward passes."""
        backward(model(self.batch(number), **named).float().pow(2).mean() * factor)

    def train(self, model: Any, optimizer: Any, steps: int | None = None, **named: Any) -> None:
        """Take some usual steps."""
        for step in range(steps or self.steps):
            optimizer.zero_grad()
            self.backward(model, step, **named)
            optimizer.step()

    def see(self, *values: Any) -> None:
        """Note values to compare."""
        self.seen += [copy.deepcopy(whole(value)) for value in values]

    def end(self) -> list[Any]:
        """All that is to be compared."""
        self.see(self.model.state_dict())
        if self.handle is not None:
            self.handle.close()
            self.see_nothing_new()
        return self.seen

    def see_nothing_new(self) -> None:
        """Make sure that closing has left the weights as they were."""
        after = whole(self.model.state_dict())
        assert all(torch.equal(after[name], value) for name, value in self.seen[-1].items())


def mesh_of(replicas: int) -> DeviceMesh:
    """Return all ranks as replicas of shards."""
    shape = (replicas, dist.get_world_size() // replicas)
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards"))


def whole(value: Any) -> Any:
    """Return what was sharded as a whole; of a gradient what every replica agrees on."""
    if isinstance(value, dict):
        return {key: whole(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [whole(each) for each in value]
    return value.full_tensor() if hasattr(value, "full_tensor") else value
