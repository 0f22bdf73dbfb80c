"""The model and the data that the examples train: a small convolutional network on random images."""

import torch
from torch import nn


def build_model() -> nn.Module:
    """Return the model; the same weights on every rank and in every run."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(128, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256 * 4 * 4, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


class Batches:
    """Random images with random labels: every rank its own, the same in every run."""

    def __init__(self, rank: int, size: int) -> None:
        self._generator = torch.Generator().manual_seed(1000 + rank)
        self._size = size

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return one batch of 64 x 64 images and their labels."""
        images = torch.randn(self._size, 3, 64, 64, generator=self._generator)
        labels = torch.randint(0, 10, (self._size,), generator=self._generator)
        return images, labels
