"""Loops that clear, change and read gradients through tensors that they keep."""

from collections.abc import Sequence

import torch

from tests.runtime.loops.kept_references import small
from tests.runtime.loops.loop_run import Run


def _sgd(parameters: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.1)


def cleared(run: Run) -> None:
    """Gradients are cleared through tensors kept from the first step."""
    model = run.build(small)
    optimizer, call = run.start(_sgd(list(model.parameters())), model)
    kept: list[torch.Tensor] = []
    for step in range(run.steps):
        if kept:
            torch._foreach_zero_(kept)
        call(run.batch(step, 2, 3)).pow(2).mean().backward()
        run.average(model)
        optimizer.step()
        if not kept:
            kept = [p.grad for p in model.parameters() if p.grad is not None]


def cleared_from_before_a_step(run: Run) -> None:
    """The same, of tensors that were there before the first step."""
    model = run.build(small)
    optimizer, call = run.start(_sgd(list(model.parameters())), model)
    kept: list[torch.Tensor] = []
    for step in range(run.steps):
        if kept:
            torch._foreach_zero_(kept)
        call(run.batch(step, 2, 3)).pow(2).mean().backward()
        run.average(model)
        if not kept:
            kept = [p.grad for p in model.parameters() if p.grad is not None]
        run.see(kept)
        optimizer.step()


def scaled(run: Run) -> None:
    """Gradients are clipped and read through kept tensors, and cleared to zeros by the optimizer."""
    model = run.build(small)
    optimizer, call = run.start(_sgd(list(model.parameters())), model)
    kept: list[torch.Tensor] = []
    for step in range(run.steps):
        call(run.batch(step, 2, 3)).pow(2).mean().backward()
        run.average(model)
        if kept:
            norm = torch.stack([gradient.norm() for gradient in kept]).norm()
            run.see(norm, kept)
            torch._foreach_mul_(kept, 0.05 / float(norm))
        optimizer.step()
        if not kept:
            kept = [p.grad for p in model.parameters() if p.grad is not None]
        torch._foreach_zero_(kept)


def flat_buffer(run: Run) -> None:
    """Gradients are views of one flat buffer, which is cleared and clipped as a whole."""
    model = run.build(small)
    optimizer, call = run.start(_sgd(list(model.parameters())), model)
    parameters = list(model.parameters())
    flat = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    parts = torch.split(flat, [p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter)
    for step in range(run.steps):
        flat.zero_()
        call(run.batch(step, 2, 3)).pow(2).mean().backward()
        run.average(model)
        norm = flat.norm()
        run.see(norm)
        if norm > 0.05:
            flat.mul_(0.05 / norm)
        optimizer.step()


def accumulated(run: Run) -> None:
    """Two backward passes a step, the first in no_sync, into gradients that are kept."""
    model = run.build(small)
    optimizer, call = run.start(_sgd(list(model.parameters())), model)
    kept: list[torch.Tensor] = []
    for step in range(run.steps):
        if kept:
            torch._foreach_zero_(kept)
        quiet = call if call is not model else run.wrapper
        with run.no_sync(quiet):
            call(run.batch(2 * step, 2, 3)).pow(2).mean().backward()
        call(run.batch(2 * step + 1, 2, 3)).pow(2).mean().backward()
        run.average(model)
        run.see(kept)
        optimizer.step()
        if not kept:
            kept = [p.grad for p in model.parameters() if p.grad is not None]


def never_cleared(run: Run) -> None:
    """Gradients of all steps add up."""
    model = run.build(small)
    optimizer, call = run.start(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5), model)
    for step in range(run.steps):
        call(run.batch(step, 2, 3)).pow(2).mean().backward()
        run.average(model)
        optimizer.step()


def stepped_twice(run: Run) -> None:
    """Every step() is taken twice after one backward pass."""
    model = run.build(small)
    optimizer, call = run.start(_sgd(list(model.parameters())), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        call(run.batch(step, 2, 3)).pow(2).mean().backward()
        run.average(model)
        optimizer.step()
        optimizer.step()


def frozen_with_zeros(run: Run) -> None:
    """A layer is frozen; its gradients are zeros, and momentum and weight decay go on."""
    model = run.build(small)
    optimizer, call = run.start(_sgd(list(model.parameters())), model)
    for step in range(run.steps):
        if step == 5:
            model[0].requires_grad_(False)
        optimizer.zero_grad(set_to_none=False)
        call(run.batch(step, 2, 3)).pow(2).mean().backward()
        run.average(model)
        optimizer.step()


LOOPS = (
    cleared,
    cleared_from_before_a_step,
    scaled,
    flat_buffer,
    accumulated,
    never_cleared,
    stepped_twice,
    frozen_with_zeros,
)
