"""Streaming DiLoCo of all workers in one plain loop: the algorithm as the paper has it, without our code.

Douillard et al., arXiv 2501.18512, algorithm 2, with a delay for each fragment.
"""

from dataclasses import dataclass

import torch
from torch import nn

LEARNING_RATE, MOMENTUM = 0.7, 0.9


@dataclass(frozen=True)
class Sent:
    """Elements of the flat model, and when they are sent and applied."""

    elements: list[tuple[int, int]]
    send_step: int
    delay_steps: int


def build_model(seed: int = 0) -> nn.Sequential:
    """Return the same small model everywhere."""
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 1))
    random = torch.Generator().manual_seed(seed)  # torch's own is shared by the members' threads
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3, generator=random)
    return model


def inner_step(model: nn.Module, optimizer: torch.optim.Optimizer, worker: int, step: int) -> None:
    """Take one step on a worker's own data."""
    inputs = torch.randn(16, 6, generator=torch.Generator().manual_seed(1000 * worker + step))
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), inputs.prod(1, keepdim=True)).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def inner_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return a worker's optimizer."""
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def outer_optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the outer optimizer for our runtime."""
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM, nesterov=True)


def flat(model: nn.Module) -> torch.Tensor:
    """Return all parameters as one row."""
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()])


def load_flat(model: nn.Module, row: torch.Tensor) -> None:
    """Write one row into all parameters."""
    at = 0
    with torch.no_grad():
        for each in model.parameters():
            each.copy_(row[at : at + each.numel()].view_as(each))
            at += each.numel()


def train_reference(
    sent: list[Sent], *, workers: int, period: int, steps: int, mix: float, weights: list[float]
) -> list[torch.Tensor]:
    """Return each worker's parameters after so many steps."""
    models = [build_model() for _ in range(workers)]
    optimizers = [inner_optimizer(model) for model in models]
    places = [torch.cat([torch.arange(begin, end) for begin, end in each.elements]) for each in sent]
    outer = [flat(models[0])[place] for place in places]
    momenta: list[torch.Tensor | None] = [None] * len(sent)
    under_way: dict[int, tuple[int, torch.Tensor]] = {}
    for step in range(1, steps + 1):
        for worker in range(workers):
            inner_step(models[worker], optimizers[worker], worker, step)
        for number, each in enumerate(sent):
            if step % period == each.send_step:
                total = torch.zeros_like(outer[number])
                for worker in range(workers):
                    total = total + (outer[number] - flat(models[worker])[places[number]]) * weights[worker]
                under_way[number] = step + each.delay_steps, total / torch.tensor(sum(weights))
        for number, (due, mean) in sorted(under_way.items()):
            if due != step:
                continue
            del under_way[number]
            before = momenta[number]
            momentum = mean.clone() if before is None else before.mul(MOMENTUM).add(mean)
            momenta[number] = momentum
            # Nesterov, rounded as torch.add rounds with a factor.
            outer[number] = outer[number].add(mean.add(momentum, alpha=MOMENTUM), alpha=-LEARNING_RATE)
            for model in models:
                row = flat(model)
                own = row[places[number]]
                row[places[number]] = torch.lerp(outer[number], own, mix) if mix else outer[number]
                load_flat(model, row)
    return [flat(model) for model in models]
