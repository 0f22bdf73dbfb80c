"""A job of one rank, which sends nothing: over NCCL on a GPU, over Gloo on the simulated device."""

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from benchmarks.studies.gpu.findings import Setting
from benchmarks.studies.gpu.loops import training_step
from benchmarks.studies.gpu.models import Workload

WAYS = ("plain", "DDP", "PACE, barrier", "PACE, overlap")


@contextlib.contextmanager
def one_rank(setting: Setting) -> Iterator[None]:
    """Join a process group of this process alone."""
    backend = "gloo" if setting.dry else "nccl"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    if setting.dry:
        from benchmarks.studies.gpu.simulation import simulate_gpu

        simulate_gpu(0)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def trained(
    way: str, model: nn.Module, workload: Workload, device: str
) -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """Wrap a model in one of ``WAYS``; yields what trains a step, and what waits for the last one."""
    import pace.runtime.torch

    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-4)
    wrapped = model
    if way == "DDP":
        wrapped = DistributedDataParallel(model)
    elif way != "plain":
        optimizer = pace.runtime.torch.DistributedOptimizer(
            optimizer, model, mode="barrier" if "barrier" in way else "overlap", timeout_s=30.0
        )
    step = training_step(wrapped, optimizer, workload.batch(device))
    try:
        yield step, getattr(optimizer, "synchronize", lambda: None)
    finally:
        getattr(optimizer, "close", lambda: None)()
        del wrapped, step, optimizer
        gc.collect()  # DDP's hooks go with it
