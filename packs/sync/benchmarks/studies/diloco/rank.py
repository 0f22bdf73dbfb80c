"""One worker of the study, started by it; prints the seconds of its periods."""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from pace_fabric.runtime.commit_log import Vector
from pace_sync.diloco import GroupMean, OuterStep
from pace_sync.documents.outer_plan import load_outer_plan

PORT = 7091
WAIT = timedelta(minutes=30)


def build_model(layers: int, numbers: int) -> nn.Module:
    """Return a model of parameters, each one layer of the document; its compute is `step_s` of sleep."""
    model = nn.Module()
    for number in range(layers):
        model.register_parameter(f"layer{number}", nn.Parameter(torch.zeros(numbers)))
    return model


def make_outer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the paper's outer optimizer."""
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


class _Alone:
    """A mean of one worker."""

    def all_reduce(self, update: Vector, **_same_for_one: object) -> Vector:
        return update


def main() -> None:
    """Measure periods of a plan, or for the document the means of two sizes and the outer step itself."""
    torch.set_num_threads(1)
    rank, size, master, plan_file, layers, numbers, step_s, periods = sys.argv[1:]
    dist.init_process_group(
        "gloo", f"tcp://{master}:{PORT}", timeout=WAIT, rank=int(rank), world_size=int(size)
    )
    if plan_file == "calibrate":
        sizes = int(numbers) // 8, int(numbers)
        print(json.dumps([*map(calibrated, sizes), update_s(int(layers), int(numbers))]), flush=True)
        return
    plan = load_outer_plan(Path(plan_file))
    model = build_model(int(layers), int(numbers))
    seconds: list[float] = []
    with OuterStep(model, make_outer, GroupMean(), members=int(size), plan=plan) as step:
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
    """Return the seconds of the mean of so many numbers, the median of five."""
    found = []
    mean, update = GroupMean(), np.zeros(numbers, dtype=np.float32)
    for _ in range(6):
        dist.barrier()
        began = time.monotonic()
        mean.all_reduce(update, members=dist.get_world_size())
        found.append(time.monotonic() - began)
    return sorted(found[1:])[2]


def update_s(layers: int, numbers: int) -> float:
    """Return the seconds of an outer step of the whole model without a network, the median of five.

    Layer by layer, so that as much is in the processor's caches as when fragments are sent.
    """
    found = []
    models = [build_model(1, numbers) for _ in range(layers)]
    steps = [OuterStep(model, make_outer, _Alone(), members=1) for model in models]
    for _ in range(6):
        began = time.monotonic()
        for step in steps:
            step.step()
        found.append(time.monotonic() - began)
    return sorted(found[1:])[2]


if __name__ == "__main__":
    main()
