"""What ``attach`` refuses, and what is refused later; each leaves nothing behind."""

from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import BuiltinCommHookType
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

from tests.runtime.attached_loops import Refusals
from tests.runtime.ddp.loops import Job, Net


def attach(model: Any, optimizer: Any = None, **options: Any) -> Any:
    """Attach to a model with an optimizer for all its parameters."""
    import pace.runtime.ddp

    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return pace.runtime.ddp.attach(model, optimizer, timeout_s=60.0, **options)


def without_ddp(_rank: int) -> None:
    """A plain model."""
    attach(Net())


def twice(_rank: int) -> None:
    """Attached already."""
    model = DistributedDataParallel(Net())
    with attach(model):
        attach(model)


def several_optimizers(_rank: int) -> None:
    """A list of optimizers."""
    module = Net()
    attach(DistributedDataParallel(module), [torch.optim.SGD(module.parameters(), lr=0.1)])


def scheduler_on_one_rank(rank: int) -> None:
    """A learning rate schedule in the optimizer's place, on one rank alone."""
    module = Net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    attach(DistributedDataParallel(module), scheduler if rank == 0 else optimizer)


def ignored(_rank: int) -> None:
    """Parameters that each rank updates by itself."""
    module = Net()
    ddp: Any = DistributedDataParallel
    ddp._set_params_and_buffers_to_ignore_for_model(module, ["branch.weight"])
    attach(DistributedDataParallel(module))


def mixed_precision(_rank: int) -> None:
    """DistributedDataParallel's own mixed precision."""
    attach(DistributedDataParallel(Net(), mixed_precision=_MixedPrecision(param_dtype=torch.bfloat16)))


def other_hook(_rank: int) -> None:
    """A communication hook that compresses gradients."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = DistributedDataParallel(Net())
    model.register_comm_hook(None, fp16_compress_hook)
    attach(model)


def builtin_hook(_rank: int) -> None:
    """One of those that torch has in C++."""
    model: Any = DistributedDataParallel(Net())
    model._register_builtin_comm_hook(BuiltinCommHookType.ALLREDUCE)
    attach(model)


def later_hook(rank: int) -> None:
    """A communication hook, registered while PACE is attached."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    job = Job(rank, attach=True)
    model, _ = job.begin()
    with job.handle:
        model.register_comm_hook(None, fp16_compress_hook)


def later_builtin_hook(rank: int) -> None:
    """The same with one of torch's."""
    job = Job(rank, attach=True)
    model, _ = job.begin()
    with job.handle:
        model._register_builtin_comm_hook(BuiltinCommHookType.ALLREDUCE)


def sharded(_rank: int) -> None:
    """Sharded updates, which only a model without DistributedDataParallel can have."""
    from pace.runtime.ddp import AllReduce

    attach(DistributedDataParallel(Net()), communication=AllReduce(sharding="auto"))


def some_parameters(_rank: int) -> None:
    """An optimizer for a part of what DistributedDataParallel sums."""
    model = DistributedDataParallel(Net())
    attach(model, torch.optim.SGD(model.module.first.parameters(), lr=0.1))


def other_weights(rank: int) -> None:
    """Ranks whose weights are not the same any more."""
    model = DistributedDataParallel(Net())
    if rank:
        with torch.no_grad():
            model.module.first.bias.add_(1.0)
    attach(model)


def local_step(rank: int) -> None:
    """An update from gradients of each rank alone."""
    job = Job(rank, attach=True)
    model, optimizer = job.begin()
    with job.handle:
        with model.no_sync():
            job.backward(model, 1)
        optimizer.step()


def joined(rank: int) -> None:
    """Ranks with fewer batches than others."""
    job = Job(rank, attach=True)
    model, _ = job.begin()
    with job.handle, model.join():
        job.backward(model, 1)


def attached_inside_join(_rank: int) -> None:
    """Attaching where ranks may already have fewer batches than others."""
    model: Any = DistributedDataParallel(Net())
    with model.join():
        attach(model)


def nested(rank: int) -> None:
    """The model inside another DistributedDataParallel than the one attached to."""
    job = Job(rank, attach=True)
    model, _ = job.begin()
    with job.handle:
        outer = DistributedDataParallel(nn.Sequential(model.module))
        outer(job.batch(0))


REFUSALS: Refusals = (
    (without_ddp, "a torch DistributedDataParallel is needed"),
    (twice, "already attached to this model"),
    (several_optimizers, "optimizer is of type list; a torch.optim.Optimizer is needed"),
    (scheduler_on_one_rank, "optimizer is of type StepLR; a torch.optim.Optimizer is needed"),
    (ignored, "are ignored"),
    (mixed_precision, "torch.autocast"),
    (other_hook, "compression="),
    (builtin_hook, "compression="),
    (later_hook, "compression="),
    (sharded, "without sharding="),
    (later_builtin_hook, "compression="),
    (some_parameters, "branch.weight"),
    (some_parameters, "wrap each in pace.runtime.torch.DistributedOptimizer"),
    (other_weights, "first.bias"),
    (local_step, "in no_sync()"),
    (joined, "join()"),
    (attached_inside_join, "join()"),
    (nested, "reduce gradients a second time"),
)
