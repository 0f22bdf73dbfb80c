"""Loops that reach into an optimizer: its groups, its state and its methods, through references they keep."""

from typing import Any

import torch
from torch import nn

from tests.runtime.loops.kept_references import small
from tests.runtime.loops.loop_run import Run


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def _step(run: Run, model: nn.Module, optimizer: Any, call: Any, number: int) -> None:
    optimizer.zero_grad()
    call(run.batch(number, 2, 3)).pow(2).mean().backward()
    run.average(model)
    optimizer.step()


def group_dict(run: Run) -> None:
    """A group's dictionary kept from before wrapping sets the learning rate."""
    model = run.build(small)
    inner = _sgd(model)
    group, groups = inner.param_groups[0], inner.param_groups
    optimizer, call = run.start(inner, model)
    for step in range(run.steps):
        group["lr"] = 0.01 * (1 + step % 3)
        _step(run, model, optimizer, call, step)
        groups[0]["weight_decay"] = 0.1 * (step % 2)
        run.see(optimizer.param_groups[0]["lr"])


def state_edited(run: Run) -> None:
    """Momentum is halved in place after each step."""
    model = run.build(small)
    optimizer, call = run.start(_sgd(model), model)
    for step in range(run.steps):
        _step(run, model, optimizer, call, step)
        for state in optimizer.state.values():
            state["momentum_buffer"].mul_(0.5)
        run.see(len(optimizer.state))


def state_cleared(run: Run) -> None:
    """State is dropped now and then."""
    model = run.build(small)
    optimizer, call = run.start(_sgd(model), model)
    for step in range(run.steps):
        _step(run, model, optimizer, call, step)
        if step % 3 == 2:
            optimizer.state.clear()


def state_tensors_kept(run: Run) -> None:
    """Tensors of the state are kept from the second step, read and changed after each later one."""
    model = run.build(small)
    optimizer, call = run.start(torch.optim.Adam(model.parameters(), lr=0.01), model)
    kept: list[torch.Tensor] = []
    for step in range(run.steps):
        _step(run, model, optimizer, call, step)
        if step == 1:
            kept = [optimizer.state[parameter]["exp_avg"] for parameter in model.parameters()]
        run.see(kept)
        if kept and step % 2:
            torch._foreach_mul_(kept, 0.5)


def state_kept(run: Run) -> None:
    """The dictionary of all state is kept from before wrapping, and read after each step."""
    model = run.build(small)
    inner = torch.optim.Adam(model.parameters(), lr=0.01)
    state = inner.state
    optimizer, call = run.start(inner, model)
    for step in range(run.steps):
        _step(run, model, optimizer, call, step)
        run.see([state[parameter]["exp_avg"] for parameter in model.parameters()])


def patch(optimizer: Any, model: nn.Module) -> Any:
    """Put a function around ``step`` that scales gradients, and return what was there."""
    own = optimizer.step

    def step(closure: Any = None) -> Any:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)
        return own(closure)

    optimizer.step = step
    return own


def patched_before(run: Run) -> None:
    """The optimizer's ``step`` is replaced before it is wrapped."""
    model = run.build(small)
    inner = _sgd(model)
    patch(inner, model)
    optimizer, call = run.start(inner, model)
    for step in range(run.steps):
        _step(run, model, optimizer, call, step)


def patched_for_a_while(run: Run) -> None:
    """The ``step`` of the optimizer is replaced in mid-training, and put back."""
    model = run.build(small)
    inner = _sgd(model)
    optimizer, call = run.start(inner, model)
    own = None
    for step in range(run.steps):
        if step == 3:
            own = patch(inner, model)
        if step == 6:
            inner.step = own  # type: ignore[assignment, method-assign]  # as it was
        _step(run, model, optimizer, call, step)


LOOPS = (
    group_dict,
    state_edited,
    state_cleared,
    state_tensors_kept,
    state_kept,
    patched_before,
    patched_for_a_while,
)
