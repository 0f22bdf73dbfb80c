"""Peak memory of a training iteration: plain, under DDP and under PACE."""

import gc
from pathlib import Path

import torch

from benchmarks.studies.gpu.findings import Findings, Setting
from benchmarks.studies.gpu.models import workloads
from benchmarks.studies.gpu.one_rank import WAYS, one_rank, trained

MODEL = "BERT-base"


def run(findings: Findings, setting: Setting) -> None:
    """See ``parts``."""
    workload = workloads(dry=setting.dry)[MODEL]
    findings.fact("model", f"{MODEL}, fp32, AdamW, {workload.batch_size} samples a batch, one rank")
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
    workload = workloads(dry=setting.dry)[MODEL]
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
