"""A small transformer that shards its parameters as torchtitan's SimpleFSDP does, and the same for FSDP2.

Each parameter is gathered where it is used. The gathered tensor is not kept for the backward pass: the
partitioner has to gather it again there, and its gradient is reduce-scattered.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

HEADS = 8
_GATHERS = (
    torch.ops._c10d_functional.all_gather_into_tensor.default,
    torch.ops._c10d_functional.wait_tensor.default,
)


class Block(nn.Module):
    """Attention and a feed-forward layer, with two norms; it gathers its own shards if `sharded`."""

    attention_norm: nn.Parameter
    queries_keys_values: nn.Parameter
    attention_out: nn.Parameter
    norm: nn.Parameter
    up: nn.Parameter
    down: nn.Parameter

    def __init__(self, width: int, generator: torch.Generator, *, sharded: bool) -> None:
        super().__init__()
        self._weight = _gathered if sharded else _whole
        shapes = {
            "attention_norm": (width,),
            "queries_keys_values": (3 * width, width),
            "attention_out": (width, width),
            "norm": (width,),
            "up": (4 * width, width),
            "down": (width, 4 * width),
        }
        for name, shape in shapes.items():
            whole = (
                torch.randn(shape, generator=generator) / width**0.5 if len(shape) > 1 else torch.ones(shape)
            )
            own = whole.chunk(dist.get_world_size())[dist.get_rank()].clone() if sharded else whole
            self.register_parameter(name, nn.Parameter(own))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return a batch of the same shape."""
        count, length, width = batch.shape
        normed = rms_norm(batch, (width,), self._weight(self.attention_norm))
        heads = linear(normed, self._weight(self.queries_keys_values)).view(count, length, 3, HEADS, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(count, length, width)
        batch = batch + linear(mixed, self._weight(self.attention_out))
        normed = rms_norm(batch, (width,), self._weight(self.norm))
        hidden = silu(linear(normed, self._weight(self.up)))
        return batch + linear(hidden, self._weight(self.down))


class Transformer(nn.Module):
    """Blocks, one behind the other; all ranks have shards of the same weights, or all of them."""

    def __init__(self, blocks: int, width: int, *, sharded: bool = True) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.blocks = nn.ModuleList(Block(width, generator, sharded=sharded) for _ in range(blocks))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        for block in self.blocks:
            batch = block(batch)
        return batch.square().mean()


def fully_sharded(blocks: int, width: int, device: str) -> Transformer:
    """Return the transformer under FSDP2: each block is a unit, and gathered one unit ahead both ways."""
    model = Transformer(blocks, width, sharded=False)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    units: list[Any] = [fully_shard(block, mesh=mesh) for block in model.blocks]
    fully_shard(model, mesh=mesh)
    for number, unit in enumerate(units):
        unit.set_force_sum_reduction_for_comms(True)  # Gloo has no other
        unit.set_gradient_divide_factor(1.0)
        unit.set_modules_to_forward_prefetch(units[number + 1 : number + 2])
        unit.set_modules_to_backward_prefetch(units[max(number - 1, 0) : number])
    return model


def _whole(weight: torch.Tensor) -> torch.Tensor:
    return weight


def _gathered(shard: torch.Tensor) -> torch.Tensor:
    whole: torch.Tensor = checkpoint(_gather, shard, use_reentrant=False, context_fn=_gather_again)
    return whole


def _gather(shard: torch.Tensor) -> torch.Tensor:
    assert dist.group.WORLD is not None
    whole: torch.Tensor = functional.all_gather_tensor_autograd(shard, 0, dist.group.WORLD)
    return whole


def _policy(_context: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_RECOMPUTE if op in _GATHERS else CheckpointPolicy.MUST_SAVE


_gather_again = partial(create_selective_checkpoint_contexts, _policy)
