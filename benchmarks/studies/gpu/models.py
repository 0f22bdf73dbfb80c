"""ResNet-50, GPT-2 small and BERT-base in plain torch, with random weights, and small ones for dry runs.

The tests count their parameters against those of the published models.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
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


class Transformer(nn.Module):
    """GPT-2 (Radford et al. 2019) if `causal`, else BERT (Devlin et al. 2018) with its masked-token head.

    The output layer shares the embedding's weights. Returns the loss.
    """

    def __init__(
        self,
        *,
        causal: bool,
        vocabulary: int,
        positions: int = 1024,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=causal
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        if not causal:
            self.kinds = nn.Embedding(2, width)
            self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
            self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        length = tokens.shape[1]
        hidden = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        if self.causal:
            mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
            hidden = self.norm(self.blocks(hidden, mask, is_causal=True))
            logits = functional.linear(hidden, self.tokens.weight)
        else:
            hidden = self.norm(hidden + self.kinds(torch.zeros_like(tokens)))
            logits = functional.linear(self.transform(self.blocks(hidden)), self.tokens.weight, self.bias)
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
    "GPT-2 small": Workload(
        build=lambda: Transformer(causal=True, vocabulary=50257),
        batch_size=8,
        draw=lambda n: _tokens(n, 512, 50257),
    ),
    "BERT-base": Workload(
        build=lambda: Transformer(causal=False, vocabulary=30522, positions=512),
        batch_size=16,
        draw=lambda n: _tokens(n, 256, 30522),
    ),
}
SMALL_WORKLOADS = {
    "ResNet-50": Workload(
        build=lambda: ResNet(blocks=(1, 1), width=8, classes=10),
        batch_size=4,
        draw=lambda n: _images(n, 32, 10),
    ),
} | {
    name: Workload(
        build=partial(Transformer, causal=causal, vocabulary=100, positions=16, width=32, layers=2, heads=2),
        batch_size=2,
        draw=lambda n: _tokens(n, 16, 100),
    )
    for name, causal in (("GPT-2 small", True), ("BERT-base", False))
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
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    precision: str = "fp32",
    *,
    max_norm: float | None = None,
) -> Callable[[], None]:
    """Return a function that trains one step on the batch and waits for nothing.

    With `max_norm` it clips gradients by their global norm, as the optimizer does it if it can.
    """
    device = batch[0].device.type
    clip = getattr(optimizer, "clip_grad_norm_", partial(nn.utils.clip_grad_norm_, list(model.parameters())))

    def step() -> None:
        optimizer.zero_grad()
        with autocast(precision, device):
            loss = model(*batch)
        torch.autograd.backward(loss)
        if max_norm is not None:
            clip(max_norm)
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
