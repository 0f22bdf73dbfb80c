"""Small loops of kinds that everybody writes, each with what once went wrong in it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.runtime.loops.loop_run import Run

FUSED: tuple[Callable[[nn.Module], torch.optim.Optimizer], ...] = (
    lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True),
    lambda model: torch.optim.Adam(model.parameters(), lr=0.1, fused=True),
    lambda model: torch.optim.AdamW(model.parameters(), lr=0.1, fused=True),
    lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1, fused=True),
)


def clipped_experts(run: Run) -> None:
    """Every rank has an expert of its own, which no other rank has a gradient for."""
    model = run.build(lambda: nn.ModuleList(nn.Linear(4, 4) for _ in range(1 + run.size)))
    optimizer = run.wrap(torch.optim.SGD(model.parameters(), lr=0.5), model)
    ones = torch.ones(1, 4, dtype=torch.float64)
    for step in range(run.steps):
        optimizer.zero_grad()
        model[0](model[1 + run.rank](ones * (run.rank + 1))).pow(2).sum().backward()
        run.average(model)
        if step % 2:
            nn.utils.clip_grad_value_(model.parameters(), 0.05)
        else:
            run.see(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        run.see([parameter.grad for parameter in model.parameters()])
        optimizer.step()


def scaled_experts(run: Run) -> None:
    """The same under a loss scaler; the last rank's expert overflows once."""
    model = run.build(lambda: nn.ModuleList(nn.Linear(4, 4) for _ in range(1 + run.size)))
    optimizer = run.wrap(torch.optim.Adam(model.parameters(), lr=0.1), model)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    for step in range(run.steps):
        optimizer.zero_grad()
        hidden = model[1 + run.rank](run.batch(step, 2, 4))
        if step == 2 and run.rank == run.size - 1:
            hidden = hidden * float("inf")
        scaler.scale(model[0](hidden).pow(2).mean()).backward()
        run.average(model)
        scaler.step(optimizer)
        scaler.update()
        run.see(scaler.get_scale())


def unused_layer_read(run: Run) -> None:
    """A layer that no rank uses lies in a group of its own, and a gradient is read after backward."""
    # Large enough for the runtime's own plan to put each into a group of its own.
    model = run.build(lambda: nn.ModuleDict({name: nn.Linear(730, 730, bias=False) for name in "abc"}))
    optimizer = run.wrap(torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1, momentum=0.9), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        model["b"](model["a"](run.batch(step, 1, 730))).pow(2).mean().backward()
        run.average(model)
        gradients = [parameter.grad for parameter in model.parameters()]
        run.see(*(gradient if gradient is None else gradient.norm() for gradient in gradients))
        optimizer.step()


def fewer_passes_than_announced(run: Run) -> None:
    """Two backward passes a step were announced, and every third step has one."""
    model = run.build(lambda: nn.Linear(4, 1))
    optimizer = run.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, backward_passes_per_step=2)
    for step in range(run.steps):
        optimizer.zero_grad()
        for number in range(1 if step % 3 == 2 else 2):
            model(run.batch(2 * step + number, 2, 4)).sum().backward()
        run.average(model)
        run.see(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()


def fewer_passes_scaled(run: Run) -> None:
    """The same under a loss scaler; rank 0 overflows in a step with one pass."""
    model = run.build(lambda: nn.Linear(4, 1))
    optimizer = run.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, backward_passes_per_step=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    for step in range(run.steps):
        optimizer.zero_grad()
        for number in range(1 if step % 3 == 2 else 2):
            factor = float("inf") if step == 2 and run.rank == 0 else 1.0
            scaler.scale(model(run.batch(2 * step + number, 2, 4)).sum() * factor).backward()
        run.average(model)
        scaler.step(optimizer)
        scaler.update()
        run.see(scaler.get_scale())


def _fused_scaler(run: Run, make: Callable[[nn.Module], torch.optim.Optimizer], *, unscale: bool) -> None:
    model = run.build(lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)))
    optimizer = run.wrap(make(model), model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    for step in range(run.steps):
        optimizer.zero_grad()
        factor = float("inf") if step == 2 and run.rank == 0 else 1.0
        scaler.scale(model(run.batch(step, 2, 4)).sum() * factor).backward()
        run.average(model)
        if unscale:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        run.see(scaler.get_scale(), list(model.parameters()))


def scaled_fused(run: Run) -> None:
    """A loss scaler leaves unscaling and skipping to a fused optimizer's kernel."""
    for make in FUSED:
        for unscale in (False, True):
            _fused_scaler(run, make, unscale=unscale)


class _Strided(nn.Module):
    """Parameters that do not lie in memory as their shapes say: channels last, and a transposed matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 2)
        self.conv.weight.data = self.conv.weight.data.to(memory_format=torch.channels_last)
        self.matrix = nn.Parameter(torch.randn(3, 5).t())


def strided_fused(run: Run) -> None:
    """Fused kernels walk over a parameter's memory and its gradient's side by side."""
    for make in FUSED:
        model = run.build(_Strided)
        optimizer = run.wrap(make(model), model)
        for step in range(run.steps):
            optimizer.zero_grad()
            hidden = model.conv(run.batch(step, 2, 2, 3, 3)).mean((2, 3))
            (hidden @ model.matrix.t()).pow(2).mean().backward()
            run.average(model)
            run.see(model.conv.weight.grad, model.matrix.grad)
            optimizer.step()


def two_networks(run: Run) -> None:
    """A GAN: the critic has two backward passes and the generator's leaves gradients in it."""
    generator, critic = run.build(lambda: nn.Linear(2, 2)), run.build(lambda: nn.Linear(2, 1))
    optimizer_g = run.wrap(torch.optim.SGD(generator.parameters(), lr=0.1), generator)
    optimizer_d = run.wrap(torch.optim.SGD(critic.parameters(), lr=0.1), critic)
    for step in range(run.steps):
        (critic if step % 2 else optimizer_d).zero_grad()
        critic(run.batch(step, 1, 2)).pow(2).sum().backward()
        fake = generator(run.batch(step + 500, 1, 2))
        critic(fake.detach()).sum().backward()
        run.average(critic)
        optimizer_d.step()
        optimizer_g.zero_grad()
        critic(fake).sum().backward()
        run.average(generator)
        optimizer_g.step()


def frozen_later(run: Run) -> None:
    """The first layer is frozen in mid-training, and thaws again."""
    model = run.build(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))
    optimizer = run.wrap(torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.01), model)
    for step in range(run.steps):
        if step in (5, run.steps - 5):
            model[0].requires_grad_(step != 5)
        optimizer.zero_grad()
        model(run.batch(step, 2, 4)).pow(2).mean().backward()
        run.average(model)
        optimizer.step()
        run.see(model[0].weight)


def gradients_moved(run: Run) -> None:
    """A conversion of the model gives gradients other memory, and ``zero_grad()`` clears them there."""
    model: Any = run.build(lambda: nn.Conv2d(2, 3, 2))
    optimizer = run.wrap(torch.optim.Adam(model.parameters(), lr=0.01), model)
    for step in range(run.steps):
        if step in (2, 5):
            model.to(memory_format=torch.channels_last if step == 2 else torch.contiguous_format)
        optimizer.zero_grad()
        model(run.batch(step, 2, 2, 3, 3)).pow(2).mean().backward()
        run.average(model)
        run.see(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        optimizer.step()


def hooks_before_closures(run: Run) -> None:
    """A hook of ``step`` decays weights before the closure uses them, and gives ``step`` another closure."""
    model = run.build(lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)))
    optimizer = run.wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)

    def decay(own: torch.optim.Optimizer, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        run.see(len(given))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9)
        return (own, lambda: 2 * given[1]()), named

    optimizer.register_step_pre_hook(decay)
    for step in range(run.steps):

        def closure(step: int = step) -> Any:
            optimizer.zero_grad()
            loss = model(run.batch(step, 2, 4)).pow(2).mean()
            loss.backward()
            run.average(model)
            return loss.detach()

        run.see(optimizer.step(closure))


def hooks_replace_gradients(run: Run) -> None:
    """A hook of ``step`` replaces gradients, which later backward passes add to."""
    model = run.build(lambda: nn.Linear(4, 2))
    optimizer = run.wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)

    def halve(*_given: object) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad = parameter.grad * 0.5

    optimizer.register_step_pre_hook(halve)
    for step in range(run.steps):
        if step % 3 == 0:
            optimizer.zero_grad()
        model(run.batch(step, 2, 4)).pow(2).mean().backward()
        run.average(model)
        optimizer.step()
        run.see([parameter.grad for parameter in model.parameters()])


def views_of_replaced_gradients(run: Run) -> None:
    """Moving averages of gradients begin as views of the first ones, which the average then changes."""
    model = run.build(lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)))
    optimizer = run.wrap(torch.optim.Adam(model.parameters(), lr=0.1), model)
    averages: dict[nn.Parameter, torch.Tensor] = {}
    for step in range(run.steps):
        optimizer.zero_grad()
        model(run.batch(step, 2, 4)).pow(2).mean().backward()
        run.average(model)
        if step % 4 == 0:
            averages = {p: p.grad.detach() for p in model.parameters() if p.grad is not None}
        for parameter, average in averages.items():
            assert parameter.grad is not None
            if step % 8 < 4:
                parameter.grad = parameter.grad + 2 * average
            else:
                parameter.grad.data = parameter.grad.data + 2 * average
        optimizer.step()
        run.see(list(averages.values()))
