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


class OuterReference:
    """The outer models and their optimizers, all float32, and what is under way."""

    def __init__(
        self, first: torch.Tensor, sent: list[Sent], *, period: int, mix: float, weights: list[float]
    ) -> None:
        self._sent, self._period, self._mix, self._weights = sent, period, mix, weights
        self._places = [torch.cat([torch.arange(*each) for each in one.elements]) for one in sent]
        self.outer = [first[place] for place in self._places]
        self._momenta: list[torch.Tensor | None] = [None] * len(sent)
        self._under_way: dict[int, tuple[int, torch.Tensor]] = {}

    def after_step(self, step: int, rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the workers' parameters, one row each, with what is due after this step."""
        for number, each in enumerate(self._sent):
            if step % self._period == each.send_step:
                total = torch.zeros_like(self.outer[number])
                for row, weight in zip(rows, self._weights, strict=True):
                    total = total + (self.outer[number] - row[self._places[number]]) * weight
                self._under_way[number] = step + each.delay_steps, total / torch.tensor(sum(self._weights))
        for number, (due, mean) in sorted(self._under_way.items()):
            if due != step:
                continue
            del self._under_way[number]
            before, place = self._momenta[number], self._places[number]
            momentum = mean.clone() if before is None else before.mul(MOMENTUM).add(mean)
            self._momenta[number] = momentum
            # Nesterov, rounded as torch.add rounds with a factor.
            change = mean.add(momentum, alpha=MOMENTUM)
            outer = self.outer[number] = self.outer[number].add(change, alpha=-LEARNING_RATE)
            rows = [row.clone() for row in rows]
            for row in rows:
                row[place] = torch.lerp(outer, row[place], self._mix) if self._mix else outer
        return rows


def train_reference(
    sent: list[Sent], *, workers: int, period: int, steps: int, mix: float, weights: list[float]
) -> list[torch.Tensor]:
    """Return each worker's parameters after so many steps."""
    models = [build_model() for _ in range(workers)]
    optimizers = [inner_optimizer(model) for model in models]
    reference = OuterReference(flat(models[0]), sent, period=period, mix=mix, weights=weights)
    for step in range(1, steps + 1):
        for worker, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            inner_step(model, optimizer, worker, step)
        rows = reference.after_step(step, [flat(model) for model in models])
        for model, row in zip(models, rows, strict=True):
            load_flat(model, row)
    return [flat(model) for model in models]


def change_narrow(model: nn.Module, worker: int, step: int) -> torch.Tensor:
    """Change a model in 16 bits by less than 1 %; return by how much each number changed, float32."""
    before = flat(model).float()
    noise = torch.randn(before.shape, generator=torch.Generator().manual_seed(1000 * worker + step))
    load_flat(model, before * (1.0 + 0.004 * noise))
    return flat(model).float() - before
