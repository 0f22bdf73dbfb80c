"""FX graphs of small sharded models as Inductor has them after autograd, and how to run them without ranks.

Graphs are traced for one of several ranks that do not exist. To run a graph, its collectives are replaced by
functions of this rank's tensors that treat a bucket as they treat its members.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore

RANKS, RANK, WIDTH = 4, 1, 8
OPS = torch.ops._c10d_functional


@contextmanager
def absent_ranks() -> Iterator[str]:
    """Be one of several ranks, of which no other exists; yield the name of their process group."""
    dist.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=RANKS)
    try:
        assert dist.group.WORLD is not None
        yield dist.group.WORLD.group_name
    finally:
        dist.destroy_process_group()


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> fx.GraphModule:
    """Trace a function with fake tensors."""
    return make_fx(function, tracing_mode="fake")(*inputs)


def gathered(shard: torch.Tensor, group: str) -> torch.Tensor:
    """Gather and wait."""
    whole: torch.Tensor = OPS.wait_tensor(OPS.all_gather_into_tensor(shard, RANKS, group))
    return whole


def scattered(whole: torch.Tensor, group: str) -> torch.Tensor:
    """Reduce-scatter and wait."""
    shard: torch.Tensor = OPS.wait_tensor(OPS.reduce_scatter_tensor(whole, "avg", RANKS, group))
    return shard


def iteration(group: str, layers: int) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """Return forward and backward pass of a sharded model as one graph, and inputs for it."""
    generator = torch.Generator().manual_seed(layers)
    shards = [torch.randn(WIDTH // RANKS, WIDTH, generator=generator) for _ in range(layers)]
    batch = torch.randn(3, WIDTH, generator=generator)

    def step(batch: torch.Tensor, *shards: torch.Tensor) -> list[torch.Tensor]:
        kept = []
        for shard in shards:
            kept.append(batch)
            batch = torch.relu(batch @ gathered(shard, group))
            batch = batch / (batch.norm() + 1)
        gradients = []
        gradient = batch
        for shard, before in zip(reversed(shards), reversed(kept), strict=True):
            gradients.append(scattered(before.t() @ gradient, group))
            gradient = torch.where(before > 0, gradient @ gathered(shard, group).t(), 0.0)
            gradient = gradient / (gradient.norm() + 1)
        norm = OPS.wait_tensor(OPS.all_reduce(gradient.norm(), "sum", group))
        return [norm, *gradients]

    return traced(step, batch, *shards), [batch, *shards]


class WithoutNetwork(fx.Interpreter):
    """Runs a graph whose collectives return functions of this rank's tensors."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Replace collectives; record them in `calls`."""
        if not isinstance(target, torch._ops.OpOverload) or target.namespace != "_c10d_functional":
            return super().call_function(target, args, kwargs)
        if target is OPS.wait_tensor.default:
            return args[0]
        self.calls.append((target._opname.removesuffix("_out"), args[0].numel()))
        if "all_gather" in target._opname:
            whole = torch.cat([args[0] * (rank + 1) for rank in range(RANKS)])
            return kwargs["out"].copy_(whole) if "out" in kwargs else whole
        if "reduce_scatter" in target._opname:
            return args[0].chunk(RANKS)[RANK] * 3
        return args[0] * 5

    def run_all(self, inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[tuple[str, int]]]:
        """Return the outputs, and the collectives in their order with the elements of their inputs."""
        self.calls: list[tuple[str, int]] = []
        outputs = self.run(*(each.clone() for each in inputs))
        return outputs, self.calls
