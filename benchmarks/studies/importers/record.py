"""Traces of jobs of several kinds, recorded on this machine.

    python -m benchmarks importers.record FOLDER [--steps 6] [--buckets-mb 2]
    python -m benchmarks importers.kineto FOLDER

Processes with one thread each train on Gloo, and torch.profiler records every rank's last steps into
`JOB.job/rankN.json.gz`. Two processes train three models under DistributedDataParallel. They also train one
of them with a hook that sends float16, with accumulation, and with all-reduces after the backward pass. Four
processes train one with HSDP. Nothing else should run on the machine: no operator of the trace explains the
time that a process waits for a processor.
"""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

from benchmarks.harness.conditions import study_parser

WORKERS = 2
HSDP_WORKERS = 4
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
KINDS = ("hook", "accumulation", "serial")
"""Other jobs of two processes, which train the linear layers."""
MICRO_BATCHES = 4


def train(rank: int, folder: str, steps: int, buckets_mb: float) -> None:
    """Be one of two ranks: train every model, and one model in every other manner."""
    _join(rank, folder, WORKERS)
    for name in (*MODELS, *KINDS):
        torch.manual_seed(rank)
        model, inputs = _made(name if name in MODELS else "linears")
        if name != "serial":
            model = DistributedDataParallel(model, bucket_cap_mb=buckets_mb)
        if name == "hook":
            model.register_comm_hook(None, fp16_compress_hook)  # type: ignore[operator]  # DDP's, not a tensor
        _record(name, rank, folder, steps, model, _backward(name, model, inputs))
    dist.destroy_process_group()


def train_hsdp(rank: int, folder: str, steps: int) -> None:
    """Be one of four ranks: two replicas, each sharded over two ranks."""
    _join(rank, folder, HSDP_WORKERS)
    torch.manual_seed(rank)
    model, inputs = _made("transformer")
    mesh = init_device_mesh("cpu", (2, HSDP_WORKERS // 2), mesh_dim_names=("replicate", "shard"))
    for layer in model.layers.layers:  # type: ignore[union-attr]  # a TransformerEncoder's
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    _record("hsdp", rank, folder, steps, model, _backward("hsdp", model, inputs))
    dist.destroy_process_group()


def _join(rank: int, folder: str, workers: int) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/rendezvous{workers}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=workers)


def _backward(name: str, model: nn.Module, inputs: torch.Tensor) -> Callable[[], None]:
    """Return what computes all gradients of a step, and sums them over ranks."""
    targets = torch.zeros(len(inputs), dtype=torch.long)
    count = MICRO_BATCHES if name == "accumulation" else 1

    def backward() -> None:
        for part, (batch, labels) in enumerate(zip(inputs.chunk(count), targets.chunk(count), strict=True)):
            last = part == count - 1
            with nullcontext() if last else model.no_sync():  # type: ignore[operator]  # DDP's
                torch.autograd.backward(nn.functional.cross_entropy(model(batch), labels))
        if name == "serial":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)

    return backward


def _record(
    name: str, rank: int, folder: str, steps: int, model: nn.Module, backward: Callable[[], None]
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trace = Path(folder, f"{name}.job", f"rank{rank}.json.gz")
    trace.parent.mkdir(exist_ok=True)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=WARM_UP_STEPS - 1, warmup=1, active=steps),
        on_trace_ready=lambda done: done.export_chrome_trace(str(trace)),
        record_shapes=True,
    ) as profiler:
        for _ in range(WARM_UP_STEPS + steps):
            optimizer.zero_grad()
            backward()
            optimizer.step()
            profiler.step()


def main() -> None:
    """Record into the folder that the command line names."""
    parser = study_parser(__doc__)
    parser.add_argument("folder", type=Path, help="folder for the traces")
    parser.add_number("--steps", 6, "number of recorded steps of each model")
    parser.add_number("--buckets-mb", 2.0, "size of DDP buckets in MB")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    folder = str(arguments.folder.resolve())
    given = (folder, arguments.steps, arguments.buckets_mb)
    spawn(train, given, nprocs=WORKERS)  # type: ignore[no-untyped-call]  # torch gives it no types
    spawn(train_hsdp, given[:2], nprocs=HSDP_WORKERS)  # type: ignore[no-untyped-call]
    for workers in (WORKERS, HSDP_WORKERS):
        (arguments.folder / f"rendezvous{workers}").unlink(missing_ok=True)
