"""Training loops for DistributedDataParallel as users write them, run with and without PACE attached.

A loop is given a `Job` and trains; what it notes and the weights in the end must be the same, to the bit on
two ranks, where sums do not depend on their order.
"""

import copy
import inspect
import io
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.runtime.attached_loops import AttachedJob, usual
from tests.runtime.training import backward

WIDTH = 12


def sends_buffers(value: bool) -> dict[str, Any]:
    """Return the argument that says whether buffers are sent; torch 2.13 renamed it."""
    new = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers" if new else "broadcast_buffers": value}


class Net(nn.Module):
    """Has buffers, and a branch that batches may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.branch = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor, *, branch: bool = True) -> torch.Tensor:
        """Three or four layers."""
        hidden = torch.relu(self.norm(self.first(x)))
        if branch:
            hidden = hidden + torch.tanh(self.branch(hidden))
        output: torch.Tensor = self.last(hidden)
        return output


class Job(AttachedJob):
    """A loop with DistributedDataParallel."""

    steps = 6
    width = WIDTH

    def wrapped(self, module: nn.Module | None = None, **options: Any) -> Any:
        """Make the model in DistributedDataParallel."""
        torch.manual_seed(3)
        self.model = DistributedDataParallel(Net() if module is None else module, **options)
        return self.model

    def front_door(self) -> Callable[..., Any]:
        """Return the ``attach`` of DistributedDataParallel."""
        from pace.runtime.ddp import attach

        return attach


def accumulating(job: Job) -> None:
    """Two backward passes in ``no_sync``, one outside; then the flag that ``no_sync`` sets."""
    model, optimizer = job.begin(torch.optim.SGD, gradient_as_bucket_view=True)
    for step in range(job.steps):
        if step % 2:
            for number in range(3):
                model.require_backward_grad_sync = number == 2
                job.backward(model, 3 * step + number)
        else:
            with model.no_sync():
                job.backward(model, 3 * step)
                job.see([parameter.grad for parameter in model.parameters()])
                job.backward(model, 3 * step + 1)
            job.see([parameter.grad for parameter in model.parameters()])
            job.backward(model, 3 * step + 2)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 3 == 0)


def summed_twice(job: Job) -> None:
    """Two backward passes a step, each summed."""
    model, optimizer = job.begin(torch.optim.SGD)
    for step in range(job.steps):
        optimizer.zero_grad()
        job.backward(model, 2 * step, 0.5)
        job.backward(model, 2 * step + 1, 0.5)
        optimizer.step()


def forward_first(job: Job) -> None:
    """A forward pass outside of ``no_sync`` whose backward pass is inside: it is summed."""
    model, optimizer = job.begin()
    for step in range(job.steps):
        optimizer.zero_grad()
        loss = model(job.batch(step)).pow(2).mean()
        with model.no_sync():
            backward(loss)
        optimizer.step()


def unused(job: Job) -> None:
    """Parameters that no rank uses in some steps, and that one rank uses in others."""
    model, optimizer = job.begin(find_unused_parameters=True)
    for step in range(job.steps):
        optimizer.zero_grad()
        job.backward(model, step, branch=(True, False, job.rank == 1)[step % 3])
        if step % 2:
            job.see([parameter.grad for parameter in model.parameters()])
        optimizer.step()


def static(job: Job) -> None:
    """A static graph in which a branch is never used."""
    model, optimizer = job.begin(static_graph=True)
    for step in range(job.steps):
        optimizer.zero_grad()
        job.backward(model, step, branch=False)
        optimizer.step()


def buffers(job: Job) -> None:
    """Evaluations between steps: rank 0's buffers are sent before every forward pass that trains."""
    model, optimizer = job.begin(**sends_buffers(True))
    for step in range(job.steps):
        optimizer.zero_grad()
        job.backward(model, step)
        optimizer.step()
        job.see(list(model.buffers()))
        model.eval()
        with torch.no_grad():
            job.see(model(job.batch(50)))
        model.train()


def own_buffers(job: Job) -> None:
    """Running statistics that stay each rank's own, attached to after some steps without PACE."""
    model = job.model = DistributedDataParallel(Net(), **sends_buffers(False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for step in range(job.steps):
        if step == 3:
            job.attached(model, optimizer)
        job.backward(model, step)
        optimizer.step()
        optimizer.zero_grad()
        job.see(list(model.buffers()))


def in_between(job: Job) -> None:
    """Attached between a forward pass and its backward pass, with gradients from before."""
    model = job.model = DistributedDataParallel(Net(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step in range(job.steps):
        with model.no_sync():
            job.backward(model, 20 + step)
        loss = model(job.batch(step)).pow(2).mean()
        if step == 2:
            job.attached(model, optimizer)
        backward(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)


def clipped(job: Job) -> None:
    """Gradients clipped by their norm and by value, and read for a log on rank 0 alone."""
    model, optimizer = job.begin(torch.optim.SGD)
    for step in range(job.steps):
        model.zero_grad()
        job.backward(model, step)
        job.see(nn.utils.clip_grad_norm_(model.parameters(), 0.05))
        if step % 2:
            nn.utils.clip_grad_value_(model.parameters(), 0.01)
        if job.rank == 0:
            job.see(model.module.first.weight.grad)
        optimizer.step()


def scaled(job: Job) -> None:
    """A loss scaler; rank 1 overflows in the third step."""
    model, optimizer = job.begin(torch.optim.SGD)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    for step in range(job.steps):
        optimizer.zero_grad()
        overflow = float("inf") if step == 2 and job.rank == 1 else 1.0
        backward(scaler.scale(model(job.batch(step)).pow(2).mean()) * overflow)
        if step % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        job.see(scaler.get_scale())


def autocast(job: Job) -> None:
    """A forward pass in bfloat16."""
    model, optimizer = job.begin()
    for step in range(job.steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(job.batch(step)).float().pow(2).mean()
        backward(loss)
        optimizer.step()


def closures(job: Job) -> None:
    """``step(closure)``, as Lightning calls it."""
    model, optimizer = job.begin()
    for step in range(job.steps):

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = job.backward(model, step)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            return loss

        optimizer.step(closure)


def checkpoints(job: Job) -> None:
    """Saved after some steps, loaded into the same objects, gone on with."""
    model, optimizer = job.begin()
    saved = io.BytesIO()
    for step in range(job.steps + 2):
        if step == 3:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
        if step == 6:
            saved.seek(0)
            state = torch.load(saved)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        optimizer.zero_grad()
        job.backward(model, step)
        optimizer.step()
        job.see([p.detach() for group in optimizer.param_groups for p in group["params"]])
    job.see(optimizer.state_dict()["state"])


def sums_of(states: Iterable[Any], name: str) -> list[float]:
    """Return one number for each parameter's state, whose order is that of the first updates."""
    return sorted(float(state[name].double().sum()) for state in states)


def state_read(job: Job) -> None:
    """Momentum read from the optimizer's state itself after each step, and a copy of the optimizer."""
    model, optimizer = job.begin()
    for step in range(job.steps):
        optimizer.zero_grad()
        job.backward(model, step)
        optimizer.step()
        if step % 2:
            job.see([optimizer.state[parameter]["exp_avg"] for parameter in model.parameters()])
        else:
            job.see(sums_of(optimizer.state.values(), "exp_avg_sq"), len(optimizer.state))
    copied_state = copy.deepcopy(optimizer).state
    job.see(type(copied_state).__name__, sums_of(copied_state.values(), "exp_avg"))


def copied(job: Job) -> None:
    """A moving average and a copy of the whole model, which trains on by torch's own sums."""
    model, optimizer = job.begin(torch.optim.SGD)
    average = torch.optim.swa_utils.AveragedModel(model.module)
    for step in range(job.steps):
        optimizer.zero_grad()
        job.backward(model, step)
        optimizer.step()
        average.update_parameters(model.module)
    twin = copy.deepcopy(model)
    job.backward(twin, 60)
    job.see(average.state_dict(), [parameter.grad for parameter in twin.parameters()])


def compiled(job: Job) -> None:
    """A compiled model in DistributedDataParallel."""
    torch.manual_seed(3)
    model, optimizer = job.begin(module=torch.compile(Net(), backend="aot_eager"))
    for step in range(4):
        optimizer.zero_grad()
        job.backward(model, step)
        optimizer.step()


def compiled_around(job: Job) -> None:
    """DistributedDataParallel inside of what is compiled."""
    torch.manual_seed(3)
    parallel = job.model = DistributedDataParallel(Net())
    model: Any = torch.compile(parallel, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    job.attached(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        with model.no_sync():
            job.backward(model, 20 + step)
        job.backward(model, step)
        optimizer.step()


def closed(job: Job) -> None:
    """After ``close()`` torch sums gradients itself again; PACE is attached anew."""
    model, optimizer = job.begin(torch.optim.SGD, static_graph=True)
    for step in range(9):
        if job.handle is not None and step == 3:
            job.handle.close()
        if step == 6:
            job.attached(model, optimizer)
        optimizer.zero_grad()
        job.backward(model, step)
        optimizer.step()


class ClearsSometimes(torch.optim.SGD):
    """Clears gradients in every other call only."""

    calls = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients, or none."""
        self.calls += 1
        if self.calls % 2:
            super().zero_grad(set_to_none)


def cleared_by_subclass(job: Job) -> None:
    """An optimizer's own ``zero_grad``, called on it, decides what is cleared."""
    model, optimizer = job.begin(ClearsSometimes)
    for step in range(job.steps):
        optimizer.zero_grad()
        job.backward(model, step)
        optimizer.step()
    job.see(torch.tensor(optimizer.calls))


LOOPS: tuple[Callable[[Job], None], ...] = (
    usual,
    accumulating,
    summed_twice,
    forward_first,
    unused,
    static,
    buffers,
    own_buffers,
    in_between,
    clipped,
    scaled,
    autocast,
    closures,
    checkpoints,
    state_read,
    copied,
    closed,
    cleared_by_subclass,
)

COMPILED: tuple[Callable[[Job], None], ...] = (compiled, compiled_around)

# Run while ranks try modes, too.
TRIED = frozenset((usual, accumulating, unused, clipped, closures, checkpoints))

# Torch adds a mean to a gradient and averages again; the runtime averages a sum.
ROUNDED = frozenset((summed_twice,))
