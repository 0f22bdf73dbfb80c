"""ResNet-50, GPT-2 small and BERT-base in plain torch, with random weights, and small ones for dry runs.

The tests count their parameters against those of the published models.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from pace.runtime.transports.device import clock_for

Batch = tuple[torch.Tensor, torch.Tensor]


class Bottleneck(nn.Module):
    """A residual block of He et al. 2015, with the stride in its 3 x 3 convolution."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.body = nn.Sequential(
            *(nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the block's features."""
        return functional.relu(self.body(images) + self.shortcut(images))


class ResNet(nn.Module):
    """A residual network for images; returns the loss."""

    def __init__(
        self, *, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)),
        ]
        before = width
        for stage, count in enumerate(blocks):
            for number in range(count):
                stride = 2 if stage > 0 and number == 0 else 1
                layers.append(Bottleneck(before, width << stage, stride))
                before = 4 * width << stage
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(before, classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        return functional.cross_entropy(self.head(self.features(images)), labels)


class Block(nn.Module):
    """A Transformer layer, normalized before its parts as in GPT-2, or after them as in BERT."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joined = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attend(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return what attention adds."""
        batch, length, width = hidden.shape
        shape = (batch, length, self.heads, width // self.heads)
        query, key, value = (
            part.view(shape).transpose(1, 2) for part in self.joined(hidden).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        joined: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return joined

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the layer's output."""
        if self.causal:
            hidden = hidden + self.attend(self.attention_norm(hidden))
            before_norm: torch.Tensor = hidden + self.mlp(self.mlp_norm(hidden))
            return before_norm
        hidden = self.attention_norm(hidden + self.attend(hidden))
        after_norm: torch.Tensor = self.mlp_norm(hidden + self.mlp(hidden))
        return after_norm


class Gpt2(nn.Module):
    """GPT-2 (Radford et al. 2019), whose output layer shares the embedding's weights; returns the loss."""

    def __init__(
        self,
        *,
        vocabulary: int = 50257,
        positions: int = 1024,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.norm(self.blocks(self.tokens(tokens) + self.positions(places)))
        logits = functional.linear(hidden, self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Bert(nn.Module):
    """BERT (Devlin et al. 2018) with its head for masked tokens; returns the loss."""

    def __init__(
        self,
        *,
        vocabulary: int = 30522,
        positions: int = 512,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.kinds = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=False) for _ in range(layers)))
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        embedded = self.tokens(tokens) + self.positions(places) + self.kinds(torch.zeros_like(tokens))
        hidden = self.transform(self.blocks(self.norm(embedded)))
        logits = functional.linear(hidden, self.tokens.weight, self.bias)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _images(count: int, pixels: int, classes: int) -> Batch:
    return torch.randn(count, 3, pixels, pixels), torch.randint(0, classes, (count,))


def _tokens(count: int, length: int, vocabulary: int) -> Batch:
    return torch.randint(0, vocabulary, (count, length)), torch.randint(0, vocabulary, (count, length))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model, how many samples a batch has, and how a batch of so many is drawn."""

    build: Callable[[], nn.Module]
    batch_size: int
    draw: Callable[[int], Batch]

    def batch(self, device: str, *, seed: int = 0, size: int | None = None) -> Batch:
        """One batch on the device, the same for the same seed."""
        torch.manual_seed(seed)
        inputs, targets = self.draw(size or self.batch_size)
        return inputs.to(device), targets.to(device)

    def model(self, device: str) -> nn.Module:
        """The model on the device, with the same weights every time."""
        torch.manual_seed(0)
        with torch.device(device):  # on the CPU random weights take seconds
            return self.build()


WORKLOADS = {
    "ResNet-50": Workload(build=ResNet, batch_size=64, draw=lambda n: _images(n, 224, 1000)),
    "GPT-2 small": Workload(build=Gpt2, batch_size=8, draw=lambda n: _tokens(n, 512, 50257)),
    "BERT-base": Workload(build=Bert, batch_size=16, draw=lambda n: _tokens(n, 256, 30522)),
}
SMALL_WORKLOADS = {
    "ResNet-50": Workload(
        build=lambda: ResNet(blocks=(1, 1), width=8, classes=10),
        batch_size=4,
        draw=lambda n: _images(n, 32, 10),
    ),
    "GPT-2 small": Workload(
        build=lambda: Gpt2(vocabulary=100, positions=16, width=32, layers=2, heads=2),
        batch_size=2,
        draw=lambda n: _tokens(n, 16, 100),
    ),
    "BERT-base": Workload(
        build=lambda: Bert(vocabulary=100, positions=16, width=32, layers=2, heads=2),
        batch_size=2,
        draw=lambda n: _tokens(n, 16, 100),
    ),
}


def workloads(*, dry: bool) -> dict[str, Workload]:
    """Return the models by name; small ones in a dry run."""
    return SMALL_WORKLOADS if dry else WORKLOADS


PRECISIONS = ("fp32", "bf16")
"""bf16 is autocast's: matrix products in bfloat16, weights and gradients in float32."""


def autocast(precision: str, device: str) -> AbstractContextManager[Any]:
    """Return the context of a forward pass in this precision."""
    return torch.autocast(device, torch.bfloat16) if precision == "bf16" else nullcontext()


def training_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, precision: str = "fp32"
) -> Callable[[], None]:
    """Return a function that trains one step on the batch and waits for nothing."""
    device = batch[0].device.type

    def step() -> None:
        optimizer.zero_grad()
        with autocast(precision, device):
            loss = model(*batch)
        torch.autograd.backward(loss)
        optimizer.step()

    return step


def device_seconds(model: nn.Module, step: Callable[[], None], iterations: int) -> float:
    """Return the median time between steps on the device's own clock, after three steps that do not count."""
    clock = clock_for(model)
    for _ in range(3):
        step()
    stamps = [clock.now()]
    for _ in range(iterations):
        step()
        stamps.append(clock.now())
    passed = clock.seconds(stamps)
    return median(after - before for before, after in pairwise(passed))


def settled(device: str) -> float:
    """Wait until the device has done all that was queued and return the host's time in seconds."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
