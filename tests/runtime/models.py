"""Small models, each with something that an enforcing runtime can get wrong. All return their loss."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Batch = tuple[torch.Tensor, ...]


class ConvNet(nn.Module):
    """Convolutions, normalisation and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Linear(16 * 16, 10)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of images of 3 x 8 x 8."""
        return functional.cross_entropy(self.head(self.features(images).flatten(1)), labels)


class Transformer(nn.Module):
    """Attention reads its output projection's weight without calling it; the head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.position = nn.Parameter(torch.randn(1, 6, 8) * 0.1)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(2)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of the next token."""
        hidden = self.embed(tokens) + self.position
        for layer in self.layers:
            hidden = layer(hidden)
        scores = functional.linear(hidden, self.embed.weight)
        return functional.cross_entropy(scores[:, :-1].reshape(-1, 16), tokens[:, 1:].reshape(-1))


class Recurrent(nn.Module):
    """An LSTM keeps its weights in a flat list beside its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 6)
        self.memory = nn.LSTM(6, 8, num_layers=2, batch_first=True)
        self.head = nn.Linear(8, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of the next token."""
        scores = self.head(self.memory(self.embed(tokens))[0])
        return functional.cross_entropy(scores[:, :-1].reshape(-1, 16), tokens[:, 1:].reshape(-1))


class Branches(nn.Module):
    """A branch that only some ranks take, one that nobody takes, a frozen layer, a layer used twice.

    The container's own parameters are read last, long after its forward began.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.twice = nn.Linear(6, 6)
        self.odd = nn.Linear(6, 6)
        self.never = nn.Linear(6, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(6)) for _ in range(2))
        self.named = nn.ParameterDict({"shift": nn.Parameter(torch.zeros(6))})

    def forward(self, inputs: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
        """Mean square of the output; the odd layer only where the batch says so."""
        hidden = self.twice(torch.tanh(self.twice(self.first(inputs))))
        if bool(branch):
            hidden = hidden + self.odd(hidden)
        hidden = self.frozen(hidden)
        output = hidden * self.scales[0] * self.scales[1] + self.named["shift"]
        loss: torch.Tensor = ((output - 1.0) ** 2).mean()
        return loss


class Functional(nn.Module):
    """Parameters of a module that is never called, and one captured outside any module."""

    def __init__(self) -> None:
        super().__init__()
        self.store = nn.Linear(6, 6)
        self.inner = nn.Linear(6, 6)
        self.captured = [self.inner.weight]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Mean square of a product of matrices."""
        hidden = functional.linear(inputs, self.captured[0])
        return ((functional.linear(hidden, self.store.weight, self.store.bias) - 1.0) ** 2).mean()


class Checkpointed(nn.Module):
    """Recomputes its middle in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 12)
        self.middle = nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 12))
        self.last = nn.Linear(12, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Mean square of the output."""
        hidden: torch.Tensor = checkpoint(self.middle, self.first(inputs), use_reentrant=False)
        hidden = checkpoint(self.middle, hidden, use_reentrant=True)
        loss: torch.Tensor = ((self.last(hidden) - 1.0) ** 2).mean()
        return loss


class Mixed(nn.Module):
    """Parameters of two dtypes, and an embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 6, sparse=True)
        self.narrow = nn.Linear(6, 6)
        self.wide = nn.Linear(6, 6).double()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Mean square of the output."""
        loss: torch.Tensor = ((self.wide(self.narrow(self.embed(tokens)).double()) - 1.0) ** 2).mean().float()
        return loss


class Experts(nn.Module):
    """Every rank has an expert of its own; nobody calls the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, inputs: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        """Mean square of the output."""
        hidden = self.experts[int(expert)](torch.tanh(self.first(inputs)))
        loss: torch.Tensor = ((hidden - 1.0) ** 2).mean()
        return loss


class Strided(nn.Module):
    """Parameters that lie in memory otherwise than their shapes say: channels last, and transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 4, 3, stride=2)
        self.features.weight.data = self.features.weight.data.to(memory_format=torch.channels_last)
        self.matrix = nn.Parameter((torch.randn(10, 36) / 6).t())

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of images of 3 x 8 x 8."""
        hidden = torch.tanh(self.features(images)).flatten(1)
        return functional.cross_entropy(hidden @ self.matrix, labels)


class Deepening(nn.Module):
    """Recomputes a block that all depths share, as often as the batch says."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.last = nn.Linear(6, 1)

    def forward(self, inputs: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
        """Mean square of the output."""
        hidden = self.first(inputs)
        for _ in range(int(depth)):
            hidden = checkpoint(self.block, hidden, use_reentrant=True)
        loss: torch.Tensor = ((self.last(hidden) - 1.0) ** 2).mean()
        return loss


def _images(generator: torch.Generator, _rank: int) -> Batch:
    return torch.randn(4, 3, 8, 8, generator=generator), torch.randint(0, 10, (4,), generator=generator)


def _tokens(generator: torch.Generator, _rank: int) -> Batch:
    return (torch.randint(0, 16, (4, 6), generator=generator),)


def _vectors(generator: torch.Generator, _rank: int) -> Batch:
    return (torch.randn(4, 6, generator=generator),)


def _branching(generator: torch.Generator, rank: int) -> Batch:
    return torch.randn(4, 6, generator=generator), torch.tensor(rank == 1)


def _routed(generator: torch.Generator, rank: int) -> Batch:
    return torch.randn(4, 6, generator=generator), torch.tensor(rank % 2)


def _deepening(generator: torch.Generator, rank: int) -> Batch:
    return torch.randn(4, 6, generator=generator), torch.randint(1, 4, (), generator=generator) + rank


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator, int], Batch]]] = {
    "conv": (ConvNet, _images),
    "transformer": (Transformer, _tokens),
    "recurrent": (Recurrent, _tokens),
    "branches": (Branches, _branching),
    "functional": (Functional, _vectors),
    "checkpointed": (Checkpointed, _vectors),
    "mixed": (Mixed, _tokens),
    "experts": (Experts, _routed),
    "strided": (Strided, _images),
    "deepening": (Deepening, _deepening),
}


def build(name: str, *, double: bool = False) -> nn.Module:
    """A model with the same weights in every process; `double` widens them to float64."""
    torch.manual_seed(11)
    model = MODELS[name][0]()
    return model.double() if double else model


def batches(name: str, steps: int, rank: int, *, double: bool = False) -> list[Batch]:
    """One rank's batches, the same in every process that asks."""
    generator = torch.Generator().manual_seed(100 + rank)
    found = [MODELS[name][1](generator, rank) for _ in range(steps)]
    if not double:
        return found
    return [tuple(t.double() if t.is_floating_point() else t for t in batch) for batch in found]


def weights(model: nn.Module) -> dict[str, Any]:
    """The model's weights as arrays, which travel between processes."""
    return {name: tensor.detach().numpy().copy() for name, tensor in model.state_dict().items()}
