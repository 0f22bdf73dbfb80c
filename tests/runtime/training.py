"""Models, data and plain training that the runtime's results are compared with."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

Arrays = dict[str, Any]


class ConvNet(nn.Module):
    """Convolutions, batch-independent normalisation and a classifier."""

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

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Classify images of 3 x 8 x 8."""
        return self.head(self.features(images).flatten(1))  # type: ignore[no-any-return]


def batches(model: str, steps: int, rank: int, size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each rank's share of the same global batches, from the same seed on every rank."""
    generator = torch.Generator().manual_seed(7)
    found = []
    for _ in range(steps):
        images = torch.randn(4 * size, 3, 8, 8, generator=generator)
        labels = torch.randint(0, 10, (4 * size,), generator=generator)
        found.append((images[rank * 4 : (rank + 1) * 4], labels[rank * 4 : (rank + 1) * 4]))
    del model
    return found


def build(name: str) -> nn.Module:
    """A model with the same weights in every process."""
    torch.manual_seed(11)
    return {"conv": ConvNet}[name]()


OPTIMIZERS: dict[str, Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05),
}


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Mean cross-entropy of a batch."""
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


def weights(model: nn.Module) -> Arrays:
    """The model's weights as arrays, which travel between processes."""
    return {name: tensor.detach().numpy().copy() for name, tensor in model.state_dict().items()}


def train_plainly(name: str, optimizer: str, steps: int, size: int) -> Arrays:
    """Train in one process on the whole global batch: what data-parallel training must equal."""
    model = build(name)
    chosen = OPTIMIZERS[optimizer](list(model.parameters()))
    shares = [batches(name, steps, rank, size) for rank in range(size)]
    for step in range(steps):
        chosen.zero_grad()
        sum((loss_of(model, share[step]) / size for share in shares), torch.zeros(())).backward()  # type: ignore[no-untyped-call]
        chosen.step()
    return weights(model)
