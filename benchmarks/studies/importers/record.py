"""Traces of DistributedDataParallel, recorded on this machine.

    python -m benchmarks importers.record FOLDER [--steps 6] [--buckets-mb 2]
    python -m benchmarks importers.kineto FOLDER

Two processes train three models on Gloo, with one thread each, and torch.profiler records every rank's last
steps into `MODEL.job/rankN.json.gz`. Nothing else should run on the machine: a process that waits for a
processor spends time that no operator explains.
"""

from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

from benchmarks.harness.conditions import study_parser

WORKERS = 2
WARM_UP_STEPS = 4


class Pooled(nn.Module):
    """The mean of what a Transformer makes of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(256, 10)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        """Return the logits of each sequence."""
        logits: torch.Tensor = self.head(self.layers(sequences).mean(dim=1))
        return logits


def _convolutions() -> nn.Module:
    layers: list[nn.Module] = []
    for width_in, width_out in ((3, 64), (64, 128), (128, 256), (256, 512), (512, 256)):
        layers += [nn.Conv2d(width_in, width_out, 3, stride=2, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(width_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))


def _linears() -> nn.Module:
    widths = (1024, 1024, 768, 768, 512, 512, 10)
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(widths):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _made(name: str) -> tuple[nn.Module, torch.Tensor]:
    if name == "convolutions":
        return _convolutions(), torch.randn(32, 3, 32, 32)
    if name == "linears":
        return _linears(), torch.randn(512, 1024)
    return Pooled(), torch.randn(16, 32, 256)


MODELS = ("convolutions", "linears", "transformer")


def train(rank: int, folder: str, steps: int, buckets_mb: float) -> None:
    """Be one rank: train every model and write what the profiler records."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORKERS)
    for name in MODELS:
        torch.manual_seed(rank)
        model, inputs = _made(name)
        replica = DistributedDataParallel(model, bucket_cap_mb=buckets_mb)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        targets = torch.zeros(len(inputs), dtype=torch.long)
        trace = Path(folder, f"{name}.job", f"rank{rank}.json.gz")
        trace.parent.mkdir(exist_ok=True)
        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=WARM_UP_STEPS - 1, warmup=1, active=steps),
            on_trace_ready=lambda done, trace=trace: done.export_chrome_trace(str(trace)),
            record_shapes=True,
        ) as profiler:
            for _ in range(WARM_UP_STEPS + steps):
                optimizer.zero_grad()
                torch.autograd.backward(nn.functional.cross_entropy(replica(inputs), targets))
                optimizer.step()
                profiler.step()
    dist.destroy_process_group()


def main() -> None:
    """Record into the folder that the command line names."""
    parser = study_parser(__doc__)
    parser.add_argument("folder", type=Path, help="folder for the traces")
    parser.add_argument("--steps", type=int, default=6, help="recorded, of each model")
    parser.add_argument(
        "--buckets-mb", type=float, default=2.0, help="size of DDP buckets in MB (default: %(default)s)"
    )
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    given = (str(arguments.folder.resolve()), arguments.steps, arguments.buckets_mb)
    spawn(train, given, nprocs=WORKERS)  # type: ignore[no-untyped-call]  # torch gives it no types
    (arguments.folder / "rendezvous").unlink(missing_ok=True)
