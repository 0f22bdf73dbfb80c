"""Training loops for ``fully_shard`` as users write them, run on real ranks with and without PACE attached.

A loop is given a `Job` and trains; what it notes and the weights in the end must be those of torch's own
all-reduce over the replicas: to the bit on two, where sums do not depend on their order.
"""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from tests.runtime.attached_loops import usual, whole
from tests.runtime.fsdp.job import Job, Net, mesh_of
from tests.runtime.schedules import shuffled_schedule


def many_steps(job: Job) -> None:
    """As many steps as it takes to try all modes and keep one."""
    model, optimizer = job.begin(torch.optim.SGD)
    job.train(model, optimizer, 16)


def planned(job: Job) -> None:
    """Schedules whose groups hold shards of several units, cut and sent in a senseless order."""
    for seed in range(3):
        model = job.wrapped()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        schedule = shuffled_schedule(model, 2, seed, max_segment_bytes=200)
        job.attached(model, optimizer, schedule=schedule)
        job.train(model, optimizer)
        job.see(model.state_dict())
        if job.handle is not None and seed < 2:
            job.handle.close()


def clipped(job: Job) -> None:
    """By the norm of all gradients, by torch and through the wrapper; one step whose norm is huge."""
    model, optimizer = job.begin()
    for step in range(job.steps):
        optimizer.zero_grad()
        job.backward(model, step, factor=1e3 if step == 2 else 1.0)
        if step % 2 and job.handle is not None:
            norm = job.handle.clip_grad_norm_(0.1)
        else:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        job.see(norm)


def clipped_by_value(job: Job) -> None:
    """Each element by itself."""
    model, optimizer = job.begin()
    for step in range(job.steps):
        optimizer.zero_grad()
        job.backward(model, step)
        nn.utils.clip_grad_value_(model.parameters(), 1e-3)
        optimizer.step()


def accumulating(job: Job) -> None:
    """Without any sums in some backward passes, without those over replicas in others."""
    model, optimizer = job.begin(torch.optim.SGD)
    for step in range(job.steps):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        setting = model.set_requires_gradient_sync if step % 2 else model.set_requires_all_reduce
        for number in range(3):
            setting(number == 2)
            job.backward(model, 3 * step + number)
        job.see([parameter.grad for parameter in model.parameters()])
        optimizer.step()


def summed_twice(job: Job) -> None:
    """Several backward passes a step, each summed; gradients are read in between in some steps."""
    model, optimizer = job.begin(torch.optim.SGD)
    for step in range(job.steps):
        optimizer.zero_grad()
        job.backward(model, 2 * step)
        if step % 2:
            job.see(next(model.parameters()).grad)
        job.backward(model, 2 * step + 1)
        optimizer.step()


def replaced(job: Job) -> None:
    """Gradients that user code changes in place, replaces or takes away."""
    model, optimizer = job.begin()
    for step in range(job.steps):
        optimizer.zero_grad()
        job.backward(model, step)
        for number, parameter in enumerate(model.parameters()):
            if number % 3 == 0:
                parameter.grad.mul_(0.5)
            elif number % 3 == 1:
                parameter.grad = parameter.grad * 2.0
            elif step == 3:
                parameter.grad = None
        optimizer.step()


def checkpoints(job: Job) -> None:
    """Torch's own checkpoints of DTensors, saved and loaded in mid-training."""
    model, optimizer = job.begin()
    job.train(model, optimizer, 2)
    saved = copy.deepcopy(get_state_dict(model, optimizer))
    own = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    job.see(whole(optimizer.state_dict()["state"]))
    job.train(model, optimizer, 2)
    set_state_dict(model, optimizer, model_state_dict=saved[0], optim_state_dict=saved[1])
    job.train(model, optimizer, 3)
    model.load_state_dict(own[0])
    optimizer.load_state_dict(own[1])
    job.train(model, optimizer, 2)
    kind = type(next(iter(optimizer.state.values()))["exp_avg"]).__name__
    job.see(kind, type(next(model.parameters())).__name__)


def evaluated(job: Job) -> None:
    """Forward passes alone between steps, also before the first step and between backward pass and step."""
    model, optimizer = job.begin()
    for step in range(job.steps):
        with torch.no_grad():
            job.see(model(job.batch(50 + step)).sum().item())
        optimizer.zero_grad()
        job.backward(model, step)
        optimizer.step()
        with torch.inference_mode():
            job.see(model(job.batch(70 + step)).sum().item())
        job.see([parameter.detach().sum() for parameter in model.parameters()])


def _same(parameter: Any) -> Any:
    return parameter.redistribute(placements=parameter.placements)


READINGS: dict[str, Callable[[Any], torch.Tensor]] = {
    "whole": lambda p: p.full_tensor(),
    "shard": lambda p: p.to_local(),
    "attribute": lambda p: p._local_tensor,
    "method of the class": lambda p: DTensor.to_local(p),
    "replicated": lambda p: p.redistribute(placements=[Replicate()] * p.device_mesh.ndim).to_local(),
    "redistributed": lambda p: _same(p).to_local(),
    "flattened": lambda p: getattr(p, p.__tensor_flatten__()[0][0]),
    "distributed": lambda p: distribute_tensor(p, p.device_mesh, p.placements).to_local(),
    "copy": lambda p: copy.copy(p).to_local(),
    "pickle": lambda p: pickle.loads(pickle.dumps(p.to_local().detach())),
    "transform": lambda p: torch.func.grad(lambda w: (w * w).sum())(p).to_local(),
}
"""Ways to read a sharded parameter."""
KEPT: tuple[Callable[[Any], Any], ...] = (
    lambda p: p._local_tensor,
    lambda p: p.to_local(),
    _same,
    lambda p: p.data,
)
"""Tensors that share a shard's memory."""


def read_every_way(job: Job) -> None:
    """Right after the step, each way in a step of its own; with gradients and without."""
    model, optimizer = job.begin()
    for grads in (True, False):
        for step, read in enumerate(READINGS.values()):
            optimizer.zero_grad()
            job.backward(model, step)
            optimizer.step()
            with torch.set_grad_enabled(grads):
                job.see(*[read(each).detach() for each in model.parameters()])


def averaged_shards(job: Job) -> None:
    """A moving average of shards, which takes the model's place for an evaluation."""
    model, optimizer = job.begin()
    sharded = list(model.parameters())  # after only a forward pass, the model shows gathered ones
    averages = [each.to_local().detach().clone() for each in sharded]
    for step in range(job.steps):
        optimizer.zero_grad()
        job.backward(model, step)
        optimizer.step()
        with torch.no_grad():
            for average, each in zip(averages, sharded, strict=True):
                average.lerp_(each.to_local(), 0.1)
            kept = [each.to_local().clone() for each in sharded]
            for average, each in zip(averages, sharded, strict=True):
                each.to_local().copy_(average)
            job.see(model(job.batch(99)).sum())
            for before, each in zip(kept, sharded, strict=True):
                each._local_tensor.copy_(before)
    job.see(averages)


def kept_shards(job: Job) -> None:
    """Tensors of the shards' memory that the loop has from before PACE was attached, or from afterwards."""
    for keep in KEPT:
        for early in (True, False):
            if job.handle is not None:
                job.handle.close()
            model = job.wrapped()
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
            kept = [keep(each) for each in model.parameters()] if early else []
            job.attached(model, optimizer)
            kept = kept or [keep(each) for each in model.parameters()]
            for step in range(2):
                optimizer.zero_grad()
                job.backward(model, step)
                optimizer.step()
                job.see(*[getattr(each, "_local_tensor", each).detach() for each in kept])
                with torch.no_grad():
                    for each in kept:
                        getattr(each, "_local_tensor", each).mul_(0.9)
            job.see(model.state_dict())


def used_twice(job: Job) -> None:
    """A block that runs twice in a forward pass, and one that does not run in some steps."""
    model, optimizer = job.begin()
    for step in range(job.steps):
        optimizer.zero_grad()
        job.backward(model, step, order=(0, 1, 0) if step % 2 else (2, 1, 0))
        optimizer.step()
    job.see(sorted(optimizer.state_dict()["state"]))


def frozen(job: Job) -> None:
    """Frozen parameters in a unit with others, and a whole unit that is frozen."""
    torch.manual_seed(3)
    job.model = model = Net()
    model.get_parameter("blocks.0.wide.weight").requires_grad_(False)
    model.blocks[2].requires_grad_(False)
    mesh = mesh_of(2)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.02)
    job.attached(model, optimizer)
    job.train(model, optimizer)


def prefetched(job: Job) -> None:
    """Units that are gathered ahead of their turn, explicitly or by hand."""
    model, optimizer = job.begin()
    model.set_modules_to_forward_prefetch([model.blocks[0], model.blocks[2]])
    model.blocks[0].set_modules_to_forward_prefetch([model.blocks[1]])
    for step in range(job.steps):
        if step % 2:
            model.blocks[1].unshard()
        optimizer.zero_grad()
        job.backward(model, step)
        optimizer.step()


def kept_gathered(job: Job) -> None:
    """Units that stay gathered from the forward to the backward pass, and one for longer."""
    model, optimizer = job.begin(torch.optim.SGD, reshard_after_forward=False)
    for step in range(job.steps):
        optimizer.zero_grad()
        model.set_reshard_after_backward(step % 2 == 0)
        job.backward(model, step)
        model.set_reshard_after_backward(True)
        job.backward(model, step + 30)
        optimizer.step()


def halved(job: Job) -> None:
    """Compute and sums in bfloat16, weights in float32."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    model, optimizer = job.begin(mp_policy=policy)
    job.train(model, optimizer)
    if job.handle is not None:
        assert job.handle.report().sent_bytes > 0


def compute_halved(job: Job) -> None:
    """Compute in bfloat16, sums and weights in float32."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model, optimizer = job.begin(mp_policy=policy)
    job.train(model, optimizer)


def divided_by_factor(job: Job) -> None:
    """Gradients divided by a number of the user's own."""
    model = job.wrapped()
    for module in (model, *model.blocks):
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(8.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    job.attached(model, optimizer)
    job.train(model, optimizer)


class OwnOptimizer(torch.optim.SGD):
    """Of which nothing is known."""

    def step(self, closure: Any = None) -> Any:
        """Update all at once."""
        return super().step(closure)


def of_ones_own(job: Job) -> None:
    """An optimizer that gets all gradients at once."""
    model, optimizer = job.begin(OwnOptimizer)
    job.train(model, optimizer)
    assert job.handle is None or job.handle.report().mode == "barrier"


def shards_of_one(job: Job) -> None:
    """As many replicas as ranks."""
    model, optimizer = job.begin(mesh=mesh_of(dist.get_world_size()))
    job.train(model, optimizer)


def replicas_given(job: Job) -> None:
    """A mesh of shards alone under PACE, which is told of the replicas."""
    mesh = mesh_of(2)
    model = job.wrapped(mesh["shards"] if job.attach else mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    job.attached(model, optimizer, replicas=mesh["replicas"].get_group())
    job.train(model, optimizer)


def closed_and_again(job: Job) -> None:
    """Torch's own sums after PACE, and PACE again."""
    model, optimizer = job.begin()
    job.train(model, optimizer, 2)
    if job.handle is not None:
        job.handle.close()
    job.train(model, optimizer, 2)
    job.see(model.state_dict())
    job.attached(model, optimizer)
    job.train(model, optimizer, 2)


def checkpointed(job: Job) -> None:
    """Blocks computed again in the backward pass."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    torch.manual_seed(3)
    job.model = model = Net()
    for number in range(3):
        model.blocks[number] = checkpoint_wrapper(model.blocks[number])
    mesh = mesh_of(2)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    job.attached(model, optimizer)
    job.train(model, optimizer)


def compiled_blocks(job: Job) -> None:
    """Each block compiled by itself, in place, before it is sharded."""
    torch.manual_seed(3)
    job.model = model = Net()
    mesh = mesh_of(2)
    for block in model.blocks:
        block.compile(backend="aot_eager")
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    job.attached(model, optimizer)
    job.train(model, optimizer)


def compiled_around(job: Job) -> None:
    """What torch.compile made of the sharded model."""
    model = job.wrapped()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    job.attached(compiled, optimizer)
    job.train(compiled, optimizer)


LOOPS: tuple[Callable[[Job], None], ...] = (
    usual,
    many_steps,
    planned,
    clipped,
    clipped_by_value,
    accumulating,
    summed_twice,
    replaced,
    checkpoints,
    evaluated,
    read_every_way,
    averaged_shards,
    kept_shards,
    used_twice,
    frozen,
    prefetched,
    kept_gathered,
    halved,
    compute_halved,
    divided_by_factor,
    of_ones_own,
    shards_of_one,
    replicas_given,
    closed_and_again,
    checkpointed,
)
COMPILED: tuple[Callable[[Job], None], ...] = (compiled_blocks, compiled_around)

# Sums of four depend on their order, two passes are averaged together, and compiled code has an order of its
# own.
ROUNDED = (shards_of_one, summed_twice, kept_gathered, *COMPILED)
# Long enough for a trial of all modes.
TRIED = (many_steps,)
