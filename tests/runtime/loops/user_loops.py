"""Training loops as users write them, run both plainly and under the runtime.

A loop gets a job: the model, the optimizer, and ``compute(step)``, which leaves gradients behind: in a
rank, by a backward pass on its own batch; in plain training, by averaging over all ranks' batches.
"""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.runtime.models import Batch, batches, build, weights
from tests.runtime.training import OPTIMIZERS, Weights, average_gradients, backward, trainable, wrap

STEPS = 8


@dataclass(kw_only=True)
class Job:
    """What a loop trains; `wrapped` tells the few things that plain training has no call for."""

    model: nn.Module
    optimizer: Any
    parts: list[list[Batch]]
    wrapped: bool

    def compute(self, step: int, *, model: nn.Module | None = None, scale: float = 1.0) -> None:
        """Leave this step's gradients, times `scale`, in the parameters."""
        model = model or self.model
        parts = [part[step % len(part)] for part in self.parts]
        if self.wrapped:
            backward(model(*parts[0]) * scale)
            return
        before = [None if p.grad is None else p.grad.clone() for p in trainable(model)]
        for parameter in trainable(model):
            parameter.grad = None
        average_gradients(model, parts)
        for parameter, earlier in zip(trainable(model), before, strict=True):
            if parameter.grad is not None:
                parameter.grad *= scale
            if earlier is not None:
                parameter.grad = earlier if parameter.grad is None else parameter.grad + earlier


def _schedulers(job: Job) -> Any:
    scheduler = torch.optim.lr_scheduler.StepLR(job.optimizer, step_size=2, gamma=0.5)
    for step in range(STEPS):
        job.optimizer.zero_grad()
        job.compute(step)
        job.optimizer.step()
        scheduler.step()
        for group in job.optimizer.param_groups:
            group["weight_decay"] = 0.01 * step


def _clipping(job: Job) -> Any:
    norms = []
    for step in range(STEPS):
        job.optimizer.zero_grad()
        job.compute(step)
        norm = torch.nn.utils.clip_grad_norm_(job.model.parameters(), 0.05)
        norms.append(float(norm))
        job.optimizer.step()
    return norms


def _scaling(job: Job) -> Any:
    # The third step overflows: it must be skipped on every rank, and the scale halved.
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
    scales = []
    for step in range(STEPS):
        job.optimizer.zero_grad()
        scaler.scale(torch.ones(()))
        job.compute(step, scale=float("inf") if step == 2 else scaler.get_scale())
        if step % 2:
            scaler.unscale_(job.optimizer)
            torch.nn.utils.clip_grad_norm_(job.model.parameters(), 0.05)
        scaler.step(job.optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def _accumulation(job: Job) -> Any:
    for step in range(STEPS):
        job.optimizer.zero_grad()
        job.compute(2 * step)
        job.compute(2 * step + 1)
        job.optimizer.step()


def _no_sync(job: Job) -> Any:
    for step in range(STEPS):
        job.optimizer.zero_grad()
        if job.wrapped:
            with job.optimizer.no_sync():
                job.compute(2 * step)
        else:
            job.compute(2 * step)
        job.compute(2 * step + 1)
        job.optimizer.step()


def _late_zero_grad(job: Job) -> Any:
    for step in range(STEPS):
        job.model(*job.parts[0][step])
        job.optimizer.zero_grad(set_to_none=step % 2 == 0)
        job.compute(step)
        job.optimizer.step()


def _early_zero_grad(job: Job) -> Any:
    for step in range(STEPS):
        job.compute(step)
        job.optimizer.step()
        job.optimizer.zero_grad(set_to_none=step % 2 == 0)


def _never_zero_grad(job: Job) -> Any:
    for step in range(STEPS):
        job.compute(step)
        job.optimizer.step()


def _own_zeroing(job: Job) -> Any:
    for step in range(STEPS):
        job.compute(step)
        job.optimizer.step()
        for parameter in job.model.parameters():
            if parameter.grad is not None:
                parameter.grad.detach_().zero_()


def _evaluation(job: Job) -> Any:
    losses = []
    for step in range(STEPS):
        job.optimizer.zero_grad()
        job.compute(step)
        job.optimizer.step()
        with torch.inference_mode():
            losses.append(float(job.model(*batches("conv", 1, 9)[0])))
    return losses


def _moving_average(job: Job) -> Any:
    average = [torch.zeros_like(parameter) for parameter in job.model.parameters()]
    for step in range(STEPS):
        job.optimizer.zero_grad()
        job.compute(step)
        job.optimizer.step()
        with torch.no_grad():
            for mean, parameter in zip(average, job.model.parameters(), strict=True):
                mean.mul_(0.9).add_(parameter, alpha=0.1)
    return [mean.numpy() for mean in average]


def _copies(job: Job) -> Any:
    copies = []
    for step in range(STEPS):
        job.optimizer.zero_grad()
        job.compute(step)
        job.optimizer.step()
        copied = copy.deepcopy(job.model)
        copies.append(float(copied(*batches("conv", 1, 9)[0]).detach()))
    return copies


def _replaced_gradients(job: Job) -> Any:
    for step in range(STEPS):
        job.optimizer.zero_grad()
        job.compute(step)
        for number, parameter in enumerate(job.model.parameters()):
            if number == step % 4:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad = parameter.grad.clamp(-0.1, 0.1)
        job.optimizer.step()


def _discarded(job: Job) -> Any:
    for step in range(STEPS):
        job.optimizer.zero_grad()
        job.compute(step)
        if step % 3 == 1:
            continue
        job.optimizer.step()


def _closures(job: Job) -> Any:
    for step in range(STEPS):

        def closure(step: int = step) -> torch.Tensor:
            job.optimizer.zero_grad()
            job.compute(step)
            return torch.ones(())

        job.optimizer.step(closure)


def _checkpoints(job: Job) -> Any:
    """Saves in the middle, trains on, and goes back: the second half must not see the first try."""
    saved: Any = None
    for step in (*range(STEPS), *range(4, STEPS)):
        if step == 4:
            if saved is None:
                saved = copy.deepcopy((job.model.state_dict(), job.optimizer.state_dict()))
            else:
                job.model.load_state_dict(saved[0])
                job.optimizer.load_state_dict(saved[1])
        job.optimizer.zero_grad()
        job.compute(step if saved is None else step + 1)
        job.optimizer.step()
    state = job.optimizer.state_dict()["state"]
    return [value.numpy() for number in sorted(state) for value in state[number].values()]


def _gradients_read(job: Job) -> Any:
    norms = []
    for step in range(STEPS):
        job.optimizer.zero_grad()
        job.compute(step)
        norms.append([float(p.grad.norm()) for p in job.model.parameters() if p.grad is not None])
        job.optimizer.step()
        norms.append([float(p.grad.norm()) for p in job.model.parameters() if p.grad is not None])
    return norms


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop with the optimizer it uses and the wrapper's options."""

    run: Callable[[Job], Any]
    optimizer: str = "sgd"
    options: tuple[tuple[str, Any], ...] = ()


LOOPS = {
    "schedulers": Loop(run=_schedulers),
    "clipping": Loop(run=_clipping),
    "scaling": Loop(run=_scaling),
    "scaling-adam": Loop(run=_scaling, optimizer="adam"),
    "accumulation": Loop(run=_accumulation, options=(("backward_passes_per_step", 2),)),
    "accumulation-found-out": Loop(run=_accumulation),
    "no-sync": Loop(run=_no_sync),
    "late-zero-grad": Loop(run=_late_zero_grad),
    "early-zero-grad": Loop(run=_early_zero_grad),
    "never-zero-grad": Loop(run=_never_zero_grad),
    "own-zeroing": Loop(run=_own_zeroing),
    "evaluation": Loop(run=_evaluation, optimizer="adam"),
    "moving-average": Loop(run=_moving_average),
    "copies": Loop(run=_copies),
    "replaced-gradients": Loop(run=_replaced_gradients),
    "discarded": Loop(run=_discarded),
    "closures": Loop(run=_closures),
    "lbfgs": Loop(run=_closures, optimizer="lbfgs"),
    "checkpoints": Loop(run=_checkpoints, optimizer="adam"),
    "gradients-read": Loop(run=_gradients_read),
}


def run_loop(loop: Loop, rank: int, transport: str) -> tuple[Weights, Any]:
    """Run a loop on this rank; returns the weights and what the loop returned."""
    model = build("conv")
    optimizer = wrap(transport, OPTIMIZERS[loop.optimizer](trainable(model)), model, **dict(loop.options))
    job = Job(model=model, optimizer=optimizer, parts=[batches("conv", 2 * STEPS, rank)], wrapped=True)
    said = loop.run(job)
    trained = weights(model)
    optimizer.close()
    return trained, said


@functools.cache  # for either transport
def run_plainly(loop: Loop, size: int) -> tuple[Weights, Any]:
    """Run a loop in one process; what it returns is not to be changed."""
    model = build("conv")
    parts = [batches("conv", 2 * STEPS, rank) for rank in range(size)]
    optimizer = OPTIMIZERS[loop.optimizer](trainable(model))
    said = loop.run(Job(model=model, optimizer=optimizer, parts=parts, wrapped=False))
    return weights(model), said
