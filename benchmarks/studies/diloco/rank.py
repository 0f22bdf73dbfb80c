"""One worker of the study, started by it; prints the seconds of its periods."""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from pace.documents.sync.outer_plan import load_outer_plan
from pace.runtime.diloco import GroupMean, OuterStep

PORT = 7091
WAIT = timedelta(minutes=30)


def build_model(layers: int, numbers: int) -> nn.Module:
    """Return a model of parameters, each one layer of the document; its compute is `step_s` of sleep."""
    model = nn.Module()
    for number in range(layers):
        model.register_parameter(f"layer{number}", nn.Parameter(torch.zeros(numbers)))
    return model


def main() -> None:
    """Measure periods of a plan, or the all-reduces of two sizes for the document."""
    torch.set_num_threads(1)
    rank, size, master, plan_file, layers, numbers, step_s, periods = sys.argv[1:]
    dist.init_process_group(
        "gloo", f"tcp://{master}:{PORT}", timeout=WAIT, rank=int(rank), world_size=int(size)
    )
    if plan_file == "calibrate":
        print(json.dumps([calibrated(int(numbers) // 8), calibrated(int(numbers))]), flush=True)
        return
    plan = load_outer_plan(Path(plan_file))
    model = build_model(int(layers), int(numbers))

    def outer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)

    seconds: list[float] = []
    with OuterStep(model, outer, GroupMean(), members=int(size), plan=plan) as step:
        dist.barrier()
        for number in range(int(periods)):
            began = time.monotonic()
            for _ in range(plan.period_steps):
                time.sleep(float(step_s))
                step.step()
            seconds.append(time.monotonic() - began)
            if rank == "0":
                print(f"period {number + 1}: {seconds[-1]:.3f} s", file=sys.stderr, flush=True)
    print(json.dumps(seconds), flush=True)


def calibrated(numbers: int) -> float:
    """Return the seconds of an all-reduce of so many numbers, the median of five."""
    found = []
    for _ in range(6):
        dist.barrier()
        began = time.monotonic()
        dist.all_reduce(torch.zeros(numbers))
        found.append(time.monotonic() - began)
    return sorted(found[1:])[2]


if __name__ == "__main__":
    main()
