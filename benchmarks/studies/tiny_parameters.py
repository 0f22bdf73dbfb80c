"""Models of many tiny parameters: each mode of running, compared with DistributedDataParallel.

    python -m benchmarks tiny_parameters [--parameters 600] [--optimizer sgd] [--rounds 9] [--json OUT.json]

Such a model computes next to nothing in each layer, so what counts is what happens once a gradient. Every
way has a model of its own in the same processes, and the ways take turns there and back within each round,
so that a machine that grows slower meanwhile favours none. Of a round, the slowest rank's time counts;
printed are medians over the rounds and ratios to DistributedDataParallel of the same round.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.harness.conditions import write_json
from benchmarks.harness.loopback import run_ranks

WAYS = ("ddp", "plain", "barrier", "overlap", "auto")
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-5),
    "adamw-foreach": lambda parameters: torch.optim.AdamW(parameters, lr=1e-5, foreach=True),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-5, fused=True),
}


class Job:
    """One way of running: a model, an optimizer and what they take a turn."""

    def __init__(self, way: str, arguments: argparse.Namespace) -> None:
        from pace.runtime.control.parameters import gradient_sizes
        from pace.runtime.engine.plan import plan_plainly
        from pace.runtime.torch import DistributedOptimizer

        torch.manual_seed(0)
        layers = [nn.Linear(arguments.width, arguments.width) for _ in range(arguments.parameters // 2)]
        self.model: nn.Module = nn.Sequential(*layers)
        self.inputs = torch.randn(arguments.batch, arguments.width)
        inner = OPTIMIZERS[arguments.optimizer](self.model.parameters())
        self.optimizer: Any = inner
        self.wrapped = way != "ddp"
        if not self.wrapped:
            self.model = nn.parallel.DistributedDataParallel(self.model)
            return
        mode: Any = "barrier" if way == "plain" else way
        self.optimizer = DistributedOptimizer(inner, self.model, mode=mode)
        if way == "plain":
            sizes = gradient_sizes(dict(self.model.named_parameters()))
            self.optimizer._switch(plan_plainly(sizes), True)

    def run(self, steps: int) -> float:
        """Train for some steps; return what one takes."""
        start = time.perf_counter()
        for _ in range(steps):
            self.optimizer.zero_grad()
            torch.autograd.backward(self.model(self.inputs).pow(2).mean())
            self.optimizer.step()
        if self.wrapped:
            self.optimizer.synchronize()
        return (time.perf_counter() - start) / steps


def run_rank(_rank: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Time all ways; one rank of ``measure``."""
    import torch.distributed as dist

    jobs = {way: Job(way, arguments) for way in arguments.ways}
    for job in jobs.values():
        job.run(40)  # the trial of "auto" ends well before
    durations: dict[str, list[float]] = {way: [] for way in jobs}
    for _ in range(arguments.rounds):
        of_round: dict[str, list[float]] = {way: [] for way in jobs}
        for way in (*jobs, *reversed(jobs)):
            jobs[way].run(2)
            dist.barrier()
            of_round[way].append(jobs[way].run(arguments.steps))
        for way, measured in of_round.items():
            durations[way].append(statistics.mean(measured))
    found: dict[str, Any] = {"durations": durations}
    if "auto" in jobs:
        report = jobs["auto"].optimizer.report()
        found["auto"] = {"mode": report.mode, "trial_s": report.trial_s}
    for job in jobs.values():
        if job.wrapped:
            job.optimizer.close()
    return found


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Start the ranks and return medians and ratios of the slowest."""
    said = run_ranks(arguments.ranks, run_rank, arguments)
    slowest = {
        way: [max(column) for column in zip(*(each["durations"][way] for each in said), strict=True)]
        for way in arguments.ways
    }
    found: dict[str, Any] = {"auto": said[0].get("auto")}
    for way, durations in slowest.items():
        found[way] = {**(found.get(way) or {}), "iteration_ms": statistics.median(durations) * 1e3}
        if "ddp" in slowest:
            ratios = sorted(d / base for d, base in zip(durations, slowest["ddp"], strict=True))
            found[way] |= {"over_ddp": statistics.median(ratios), "ratios": ratios}
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--parameters", type=int, default=600)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10, help="of each turn; two turns a round")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = measure(arguments)
    for way in arguments.ways:
        row = found[way]
        spread = f" ({row['ratios'][0]:.2f} to {row['ratios'][-1]:.2f})" if "ratios" in row else ""
        ratio = f"{row['over_ddp']:.3f}" if "over_ddp" in row else ""
        chosen = f"  {row['mode']}" if "mode" in row else ""
        print(f"{way:8} {row['iteration_ms']:8.2f} ms  {ratio}{spread}{chosen}")
    model = f"{arguments.parameters} parameters, width {arguments.width}, {arguments.optimizer}"
    write_json(arguments.json, {"model": model} | found)
