"""What ``attach`` refuses, and what is refused later; each leaves nothing behind."""

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_common
from torch.distributed.tensor import Shard

from tests.runtime.attached_loops import Refusals
from tests.runtime.fsdp.job import Job, Net, mesh_of


def attach(model: Any, optimizer: Any = None, **options: Any) -> Any:
    """Attach to a model with an optimizer for all its parameters."""
    import pace.runtime.fsdp

    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return pace.runtime.fsdp.attach(model, optimizer, timeout_s=60.0, **options)


def sharded(**options: Any) -> Any:
    """Return a model that can be attached to."""
    return Job(0, attach=False).wrapped(**options)


def not_sharded(_rank: int) -> None:
    """A plain model."""
    attach(Net())


def no_model(_rank: int) -> None:
    """Something else."""
    attach("model", torch.optim.SGD(Net().parameters(), lr=0.1))


def twice(_rank: int) -> None:
    """Attached already."""
    model = sharded()
    with attach(model):
        attach(model)


def several_groups(_rank: int) -> None:
    """A module with parameters on two meshes."""
    mesh = mesh_of(2)
    alone = _fsdp_common.FSDPMeshInfo(mesh["replicas"], shard_mesh_dim=0)

    def place(parameter: nn.Parameter) -> Any:
        return _fsdp_common.ShardPlacementResult(Shard(0), alone) if parameter.dim() == 1 else None

    attach(fully_shard(Net(), mesh=mesh["shards"], shard_placement_fn=place))


def no_replicas(_rank: int) -> None:
    """A mesh that does not tell who holds the same shard."""
    attach(sharded(mesh=mesh_of(2)["shards"]))


def other_replicas(_rank: int) -> None:
    """Replicas that the mesh contradicts."""
    mesh = mesh_of(2)
    attach(sharded(mesh=mesh), replicas=mesh["shards"].get_group())


def different_meshes(_rank: int) -> None:
    """Units with replicas, and units without."""
    model, mesh = Net(), mesh_of(2)
    fully_shard(model.blocks[0], mesh=mesh["shards"])
    attach(fully_shard(model, mesh=mesh))


def own_hook(_rank: int) -> None:
    """An all-reduce of the user's own."""
    model = sharded()
    model.set_all_reduce_hook(lambda _shard: None)
    attach(model)


def later_hook(rank: int) -> None:
    """The same after PACE was attached."""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, optimizer):
        model.set_all_reduce_hook(lambda _shard: None)
        Job(rank, attach=False).backward(model, 0)
        optimizer.step()


def left_out(_rank: int) -> None:
    """Parameters that torch does not sum."""
    model = Net()
    ignored = set(model.last.parameters())
    attach(fully_shard(model, mesh=mesh_of(2), ignored_params=ignored))


def some_parameters(_rank: int) -> None:
    """An optimizer for a part of what is summed."""
    model = sharded()
    attach(model, torch.optim.SGD(model.blocks[0].parameters(), lr=0.1))


def wide_sums(_rank: int) -> None:
    """Sums in a wider dtype than the parameters have."""
    torch.manual_seed(0)
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    attach(fully_shard(Net().bfloat16(), mesh=mesh_of(2), mp_policy=policy))


def hooked_gradients(_rank: int) -> None:
    """A hook that would see one replica's gradient."""
    model = sharded()
    next(model.parameters()).register_post_accumulate_grad_hook(lambda _parameter: None)
    attach(model)


def other_weights(rank: int) -> None:
    """Replicas whose weights are not the same any more."""
    model = sharded()
    if rank >= 2:
        with torch.no_grad():
            model.first.bias.add_(1.0)
    attach(model)


def different_factors(_rank: int) -> None:
    """One unit that divides by a number of its own."""
    model = sharded()
    model.blocks[1].set_gradient_divide_factor(2.0)
    attach(model)


def local_step(rank: int) -> None:
    """An update from the gradients of one replica alone."""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, optimizer):
        model.set_requires_all_reduce(False)
        Job(rank, attach=False).backward(model, 0)
        optimizer.step()


def some_accumulate(rank: int) -> None:
    """Units of which only some are to be summed."""
    model = sharded()
    with attach(model):
        model.blocks[0].set_requires_all_reduce(False)
        Job(rank, attach=False).backward(model, 0)


def plain_wrapper(_rank: int) -> None:
    """The front door for models that are not sharded."""
    from pace.runtime.torch import DistributedOptimizer

    model = sharded()
    DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, timeout_s=60.0)


REFUSALS: Refusals = (
    (not_sharded, "pace.runtime.torch.DistributedOptimizer"),
    (no_model, "a torch.nn.Module is needed"),
    (twice, "already attached to this model"),
    # torch takes two meshes since 2.12.
    *([(several_groups, "2 groups of parameters")] if hasattr(_fsdp_common, "ShardPlacementResult") else ()),
    (no_replicas, "give replicas="),
    (other_replicas, "the model's mesh has"),
    (different_meshes, "all units need the same replicas"),
    (own_hook, "a hook for all-reduces is set"),
    (later_hook, "set_all_reduce_hook() after"),
    (left_out, "last.weight"),
    (some_parameters, "first.weight"),
    (wide_sums, "reduce_dtype is wider"),
    (hooked_gradients, "those of one replica"),
    (other_weights, "first.bias"),
    (different_factors, "different factors"),
    (local_step, "set_requires_all_reduce(False)"),
    (some_accumulate, "differs between modules"),
    (plain_wrapper, "FSDPModule"),
)
