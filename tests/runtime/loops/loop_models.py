"""The small models and the optimizers of random loops, all in float64."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.runtime.loop_device import made_on_cpu, moved, numbers

WIDTH = 8
BATCH = 2


class Tied(nn.Module):
    """Shares its weight with another layer."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """A linear layer."""
        return functional.linear(hidden, self.weight, self.bias)


class Convolution(nn.Module):
    """A convolution whose weight lies in memory with its channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(2, 2, 3, padding=1)
        self.inner.weight.data = self.inner.weight.data.to(memory_format=torch.channels_last)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """A convolution of images of two by two."""
        output: torch.Tensor = self.inner(hidden.view(-1, 2, 2, 2))
        return output.reshape(-1, WIDTH)


class Transposed(nn.Module):
    """A parameter that is a transposed matrix, and one with no module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter((torch.randn(WIDTH, WIDTH) / 3).t())
        self.shift = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """A linear layer."""
        return hidden @ self.matrix + self.shift


class Checkpointed(nn.Module):
    """Recomputed in the backward pass, which is a backward pass of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """A linear layer."""
        output: torch.Tensor = (
            checkpoint(self.inner, hidden, use_reentrant=True) if hidden.requires_grad else self.inner(hidden)
        )
        return output


class Embedded(nn.Module):
    """An embedding of which a batch uses few rows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Embedding(5, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Add the embedding of each row's sign."""
        output: torch.Tensor = hidden + self.inner((hidden[:, 0] > 0).long())
        return output


class Functional(nn.Module):
    """A layer that is never called: its container reads its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.store = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """A linear layer."""
        return functional.linear(hidden, self.store.weight, self.store.bias)


def _unit(kind: str, first: nn.Linear | None) -> nn.Module:
    if kind == "tied" and first is not None:
        return Tied(next(first.parameters()))
    makers: dict[str, Callable[[], nn.Module]] = {
        "norm": lambda: nn.LayerNorm(WIDTH),
        "deep": lambda: nn.Sequential(nn.Linear(WIDTH, 3), nn.Tanh(), nn.Linear(3, WIDTH, bias=False)),
        "convolution": Convolution,
        "transposed": Transposed,
        "checkpointed": Checkpointed,
        "embedded": Embedded,
        "functional": Functional,
    }
    return makers[kind]() if kind in makers else nn.Linear(WIDTH, WIDTH)


KINDS = (
    "linear",
    "norm",
    "tied",
    "deep",
    "convolution",
    "transposed",
    "checkpointed",
    "embedded",
    "functional",
)


class Units(nn.Module):
    """Units that a batch passes through in any order, any number of times; the first is linear."""

    def __init__(self, kinds: Sequence[str]) -> None:
        super().__init__()
        first = nn.Linear(WIDTH, WIDTH)
        self.units = nn.ModuleList([first, *(_unit(kind, first) for kind in kinds[1:])])

    def forward(self, hidden: torch.Tensor, path: Sequence[int]) -> torch.Tensor:
        """The last hidden state."""
        for index in path:
            hidden = torch.tanh(self.units[index % len(self.units)](hidden))
        return hidden


def build_units(kinds: Sequence[str]) -> Units:
    """A model with the same weights in every process."""
    torch.manual_seed(5)
    with made_on_cpu():
        model = Units(kinds).double()
    moved(model)
    return model


Pass = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]


def through_units(model: Units) -> Pass:
    """A forward pass that calls units and never the model."""

    def run(hidden: torch.Tensor, path: Sequence[int]) -> torch.Tensor:
        for index in path:
            hidden = torch.tanh(model.units[index % len(model.units)](hidden))
        return hidden

    return run


def loss_of(run: Pass, path: Sequence[int], seed: int, *, wants_gradient: bool = False) -> torch.Tensor:
    """The loss of a batch made from `seed`; `wants_gradient` is for models with reentrant checkpoints."""
    generator = torch.Generator().manual_seed(seed)
    hidden = numbers((BATCH, WIDTH), generator)
    target = numbers((BATCH, WIDTH), generator)
    if wants_gradient:
        hidden.requires_grad_()
    return ((run(hidden, path) - target) ** 2).mean()


def _halves(model: nn.Module) -> list[dict[str, Any]]:
    """Two parameter groups: matrices and the rest."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() > 1]},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0, "lr": 0.03},
    ]


LOOP_OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01),
    "sgd-groups": lambda m: torch.optim.SGD(_halves(m), lr=0.05, momentum=0.9, weight_decay=0.01),
    # Without momentum: fused SGD refuses parameters that get their first gradient later than others.
    "sgd-fused": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, weight_decay=0.01, fused=True),
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, eps=1e-4, weight_decay=0.01),
    "adamw-groups": lambda m: torch.optim.AdamW(_halves(m), lr=0.01, eps=1e-4, weight_decay=0.02),
    "adam-fused": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, eps=1e-4, fused=True),
    "adamw-fused": lambda m: torch.optim.AdamW(
        m.parameters(), lr=0.01, eps=1e-4, weight_decay=0.02, fused=True
    ),
    "adagrad-fused": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.02, eps=1e-4, fused=True),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=0.005, eps=1e-3, momentum=0.5),
}
