"""A rank that trains two models under DistributedDataParallel and writes what torch.profiler records.

One worker suffices: DistributedDataParallel fills its buckets and issues its all-reduces all the same.
"""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

from benchmarks.studies.gpu.models import ResNet


class Tied(nn.Module):
    """Words in, words out, by one matrix: 50 x 16, with 16 x 16 and a bias of 16 between."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.middle = nn.Linear(16, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the logits of every word, flat."""
        hidden = torch.relu(self.middle(self.embedding(words)))
        logits: torch.Tensor = self.head(hidden)
        return logits.flatten(0, 1)


class ResNet50(nn.Module):
    """ResNet-50 with its 1,000 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = ResNet()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of every image."""
        logits: torch.Tensor = self.net.head(self.net.features(images))
        return logits


def record(
    folder: Path, model: nn.Module, inputs: torch.Tensor, bucket_mb: float | None, *, shapes: bool
) -> None:
    """Train for four steps and record the last two, the first in which buckets are what they stay."""
    folder.mkdir()
    replica = DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=2, active=2),
        on_trace_ready=lambda done: done.export_chrome_trace(str(folder / "kineto.json.gz")),
        record_shapes=shapes,
        execution_trace_observer=ExecutionTraceObserver().register_callback(str(folder / "shapes.json")),
    ) as profiler:
        for _ in range(4):
            optimizer.zero_grad()
            outputs = replica(inputs)
            targets = torch.zeros(outputs.shape[0], dtype=torch.long)
            torch.autograd.backward(nn.functional.cross_entropy(outputs, targets))
            optimizer.step()
            profiler.step()


def record_both(_rank: int, _size: int, folder: str) -> None:
    """Record both models, each in a folder of its own."""
    torch.set_num_threads(1)  # two would wait for one another wherever others compute too
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    record(Path(folder, "tied"), Tied(), torch.randint(0, 50, (4, 8)), 0.001, shapes=True)
    record(Path(folder, "resnet50"), ResNet50(), torch.randn(2, 3, 32, 32), None, shapes=False)
    dist.destroy_process_group()
