"""The parts ``overhead`` and ``memory``: a job of one rank, which sends nothing.

It runs over NCCL on a GPU, and over Gloo on the simulated device.
"""

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from benchmarks.studies.gpu.models import Workload, settled, training_step, workloads
from benchmarks.studies.gpu.part import Findings, Setting
from benchmarks.studies.runtime_overhead import NoTransport, wrap_alone
from pace.runtime.engine.plan import plan_locally
from pace.runtime.transports.device import Device, clock_for, device_of
from pace.runtime.transports.transport import After, Done

WAYS = ("plain", "DDP", "PACE, barrier", "PACE, overlap")


@contextlib.contextmanager
def one_rank(setting: Setting) -> Iterator[None]:
    """Join a process group of this process alone."""
    backend = "gloo" if setting.dry else "nccl"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    if setting.dry:
        from tests.runtime.engine.queued_device import simulate_gpu

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


ROUNDS = 3
OVERHEAD_MODEL = "GPT-2 small"


def overhead(findings: Findings, setting: Setting) -> None:
    """What the runtime costs an iteration in which nothing has to be sent, on the host and on the device."""
    workload = workloads(dry=setting.dry)[OVERHEAD_MODEL]
    findings.fact("model", f"{OVERHEAD_MODEL}, fp32, AdamW, {workload.batch_size} samples a batch, one rank")
    iterations = 3 if setting.dry else 10
    host_ms: dict[str, list[float]] = {way: [] for way in WAYS}
    device_ms: dict[str, list[float]] = {way: [] for way in WAYS}
    failed: set[str] = set()
    with findings.row(training="the engine alone, one segment") as row:
        row["host until it could go on ms"] = engine_ms(setting, rounds=3 if setting.dry else 50)
    with one_rank(setting):
        for _ in range(1 if setting.dry else ROUNDS):
            for way in WAYS:
                if way in failed:
                    continue
                found = time_way(findings, setting, way, iterations)
                if found is None:
                    failed.add(way)
                    continue
                host_ms[way].append(found[0])
                device_ms[way].append(found[1])
    plain_ms = median(device_ms["plain"]) if device_ms["plain"] else None
    for way in WAYS:
        if not device_ms[way]:
            continue
        with findings.row(training=way) as row:
            row["iteration ms"] = median(device_ms[way])
            row["host until it could go on ms"] = median(host_ms[way])
            row["over plain"] = None if plain_ms is None else row["iteration ms"] / plain_ms
            row["rounds ms"] = device_ms[way]


class NothingOnDevice(NoTransport):
    """Ends every all-reduce at once on the device's stream for communication."""

    def __init__(self, device: Device | None) -> None:
        self.device = device

    def allreduce(
        self,
        segment: torch.Tensor,  # noqa: ARG002
        name: str,  # noqa: ARG002
        done: Done,
        after: After | None = None,  # noqa: ARG002
    ) -> Any:
        """Queue nothing, and return the moment after it."""
        if self.device is None:
            done(None)
            return None
        with self.device.apart():
            moment = self.device.now()
        done(None)
        return moment


def engine_ms(setting: Setting, *, rounds: int) -> float:
    """Return the host's median milliseconds for handing over a group of one segment and waiting for it."""
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(100))).to(setting.device)
    if setting.dry:
        from tests.runtime.engine.queued_device import LaggingDevice

        device: Any = LaggingDevice(0)
    else:
        device = device_of(model)
    optimizer = wrap_alone(
        model, lambda sizes: plan_locally(sizes, max_group_bytes=1), "static", NothingOnDevice(device)
    )
    torch.autograd.backward(model(torch.randn(4, 32, device=setting.device)).sum())
    optimizer.step()
    optimizer.synchronize()
    engine = optimizer._rounds.engine
    num_groups = 200
    found = []
    for _ in range(rounds):
        started = settled(setting.device)
        for group in range(num_groups):
            engine.submit(group)
        for group in range(num_groups):
            engine.wait(group)
        found.append((time.perf_counter() - started) / num_groups)
    optimizer.close()
    if setting.dry:
        device.close()
    return median(found) * 1e3


def time_way(findings: Findings, setting: Setting, way: str, iterations: int) -> tuple[float, float] | None:
    """Return milliseconds an iteration for the host and the device; None after a failure, which is kept."""
    workload = workloads(dry=setting.dry)[OVERHEAD_MODEL]
    try:
        model = workload.model(setting.device)
        with trained(way, model, workload, setting.device) as (step, finish):
            for _ in range(4):
                step()
            finish()
            started = settled(setting.device)
            clock = clock_for(model)
            stamps = [clock.now()]
            for _ in range(iterations):
                step()
                stamps.append(clock.now())
            queued = time.perf_counter()
            finish()
            settled(setting.device)
            at_s = clock.seconds(stamps)
    except Exception as error:
        findings.check(False, f"{way}: {type(error).__name__}: {error}")
        return None
    return (queued - started) / iterations * 1e3, median(b - a for a, b in pairwise(at_s)) * 1e3


MEMORY_MODEL = "BERT-base"


def memory(findings: Findings, setting: Setting) -> None:
    """Peak memory of a training iteration: plain, under DDP and under PACE."""
    workload = workloads(dry=setting.dry)[MEMORY_MODEL]
    findings.fact("model", f"{MEMORY_MODEL}, fp32, AdamW, {workload.batch_size} samples a batch, one rank")
    findings.fact("what is counted", "the process" if setting.dry else "torch's allocator, at its peak")
    plain_mb = None
    with one_rank(setting):
        for way in WAYS:
            with findings.row(training=way) as row:
                row |= measure(way, setting)
                plain_mb = row["peak MB"] if way == "plain" else plain_mb
                row["over plain MB"] = None if plain_mb is None else row["peak MB"] - plain_mb
            gc.collect()
            if not setting.dry:
                torch.cuda.empty_cache()
                findings.fact(f"left allocated after {way}, MB", torch.cuda.memory_allocated() / 1e6)


def measure(way: str, setting: Setting) -> dict[str, float]:
    """Return what gradients take, and the peak of two steps after the first three."""
    workload = workloads(dry=setting.dry)[MEMORY_MODEL]
    before_mb = 0.0 if setting.dry else torch.cuda.memory_allocated() / 1e6  # DDP leaves its buckets behind
    model = workload.model(setting.device)
    with trained(way, model, workload, setting.device) as (step, finish):
        for number in range(5):
            if number == 3 and not setting.dry:
                torch.cuda.reset_peak_memory_stats()
            step()
        finish()
        peak_mb = used_mb(dry=setting.dry) - before_mb
    return {
        "gradients MB": sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6,
        "peak MB": peak_mb,
    }


def used_mb(*, dry: bool) -> float:
    """Return what is used: at the peak on a GPU, by this process now in a dry run."""
    if dry:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * 4096 / 1e6
    return torch.cuda.max_memory_allocated() / 1e6
