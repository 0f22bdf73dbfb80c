"""One rank of the part ``compiled``: trains a sharded transformer as one contender does."""

from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.studies.compiled_sharding.rank import Costs, FloatArray, TrainedRank
from benchmarks.studies.gpu.part import Findings, Setting
from pace.documents.collective_costs import SampledAllReduce
from pace.documents.schedule import parse_schedule

BLOCKS, WIDTH, BATCH = 6, 1024, (16, 512)
SMALL_BLOCKS, SMALL_WIDTH, SMALL_BATCH = 1, 64, (2, 16)
WARM_UP, MEASURED = 3, 8
# On CPUs Inductor's pass cannot estimate.
DRY_COST = SampledAllReduce(samples=((1.0, 1e-4), (1e8, 4.0)))
DRY_COSTS: Costs = {"all-gather": DRY_COST, "reduce-scatter": DRY_COST}


def train(findings: Findings, setting: Setting, rank: int, contender: str) -> None:
    """Train, and compare weights with those of "none", which is the first contender."""
    model = (SMALL_BLOCKS, SMALL_WIDTH, SMALL_BATCH) if setting.dry else (BLOCKS, WIDTH, BATCH)
    costs = DRY_COSTS if setting.dry else None
    trained = TrainedRank(contender, *model, costs, device=setting.device)
    initial = _weights(trained)
    own: dict[str, Any] = {"time to the first step s": trained.train(1)[0]}
    if not setting.dry:
        own["peak memory GiB"] = torch.cuda.max_memory_allocated() / 2**30
        torch.cuda.reset_peak_memory_stats()
    seconds = trained.train(WARM_UP + MEASURED)[WARM_UP:]
    if not setting.dry:
        own["peak memory after the first step GiB"] = torch.cuda.max_memory_allocated() / 2**30
        own["peak memory GiB"] = max(own["peak memory GiB"], own["peak memory after the first step GiB"])
    weights, reference = _weights(trained), setting.work / f"weights.{rank}.npy"
    if contender == "none":
        np.save(reference, weights)
    expected = np.load(reference)
    own["weights against no pass"] = float(
        np.linalg.norm(weights - expected) / np.linalg.norm(expected - initial)
    )
    found: list[Any] = [None, None]
    dist.all_gather_object(found, (own, seconds))
    slower_s = [max(step) for step in zip(*(each for _, each in found), strict=True)]
    findings.fact("iteration ms", median(slower_s) * 1e3)
    for name in own:
        findings.fact(name, max(each[name] for each, _ in found))
    if contender == "pace":
        plans = [parse_schedule(schedule) for _, schedule in trained.documents()]
        predicted = [plan.predicted for plan in plans]
        findings.fact("predicted ms", sum(each.iteration_s for each in predicted) * 1e3)
        findings.fact("bound ms", sum(each.lower_bound_s or 0.0 for each in predicted) * 1e3)
        findings.fact("calls", [len(plan.transfers) for plan in plans])
        findings.fact("predicted peak memory GiB", max(each.peak_bytes or 0 for each in predicted) / 2**30)


def _weights(trained: TrainedRank) -> FloatArray:
    return np.concatenate([each.ravel() for each in trained.weights()])
