"""Trains with a framework alone or with PACE. Every worker runs this program; see `distribute`.

torchrun --nproc-per-node 2 examples/train.py                                     PyTorch DDP
torchrun --nproc-per-node 2 examples/train.py --service http://127.0.0.1:8080 --job my-job
horovodrun -np 2 python examples/train.py --backend horovod                       plain Horovod
horovodrun -np 2 python examples/train.py --backend horovod --service ... --job my-job
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from cnn import Batches, build_model
from torch import nn
from torch.nn.functional import cross_entropy
from turns import STEPS_IN_TURN, Turns
from workers import join, leave

# Under PACE the first 20 steps are a trial: plain, with the schedule and a barrier, without the barrier.
WARMUP_STEPS = 25


def main() -> None:
    """Run one worker."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    rank, _ = join(arguments.backend, pace=arguments.service is not None)
    model = build_model()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    wrapped, optimizer = distribute(model, optimizer, arguments)
    batches = Batches(rank, arguments.batch_size)

    turns = None
    if arguments.turns is not None:
        turns = Turns(arguments.turns, arguments.backend, rank, arguments.batch_size)
        turns.begin()
    loss = torch.tensor(0.0)
    durations_s = []
    for step in range(arguments.steps):
        begins_turn = turns is not None and step >= WARMUP_STEPS and step % STEPS_IN_TURN == 0
        if turns is not None and begins_turn:
            model.state_dict()  # under PACE, this waits for updates that are still under way
            turns.end()
            turns.begin()
        started_s = time.perf_counter()
        images, labels = batches.next()
        optimizer.zero_grad()
        loss = cross_entropy(wrapped(images), labels)
        loss.backward()
        optimizer.step()
        # Nothing of the step before was under way during the first step of a turn.
        if step >= WARMUP_STEPS and not begins_turn:
            durations_s.append(time.perf_counter() - started_s)
            if rank == 0:
                print(f"step {step}: {durations_s[-1] * 1e3:.1f} ms", flush=True)
    weights = model.state_dict()
    if turns is not None:
        turns.leave()
    iteration_s = median(durations_s)

    if rank == 0:
        print(f"{arguments.steps} steps, {iteration_s * 1e3:.1f} ms (median), loss {loss.item():.4f}")
    if arguments.service:
        pace_optimizer: Any = optimizer
        report = pace_optimizer.report()
        if rank == 0 and arguments.out is not None:
            pace_optimizer.write_timeline(arguments.out.with_suffix(".trace.json"))
            trial = {"mode": report.mode, "source": report.source, "trial_s": report.trial_s}
            arguments.out.with_suffix(".trial.json").write_text(json.dumps(trial))
        pace_optimizer.close()
    if rank == 0 and arguments.out is not None:
        torch.save(weights, arguments.out.with_suffix(".pt"))
        times = {"iteration_s": iteration_s}
        if turns is not None:
            times["compute_alone_s"] = turns.compute_alone_s
        arguments.out.with_suffix(".json").write_text(json.dumps(times))
    leave(arguments.backend)


def distribute(
    model: nn.Module, optimizer: torch.optim.Optimizer, arguments: argparse.Namespace
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Wrap the model or the optimizer so that gradients are averaged over all workers."""
    horovod = arguments.backend == "horovod"
    if arguments.service and horovod:
        import pace.runtime.horovod as pace_horovod

        plan = pace_horovod.Plan(service=arguments.service, job=arguments.job)
        return model, pace_horovod.DistributedOptimizer(optimizer, model=model, plan=plan)
    if arguments.service:
        from pace.runtime.torch import DistributedOptimizer, Plan

        plan = Plan(service=arguments.service, job=arguments.job)
        return model, DistributedOptimizer(optimizer, model, plan=plan)
    if horovod:
        import horovod.torch as hvd

        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    return nn.parallel.DistributedDataParallel(model), optimizer


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--backend",
        choices=("gloo", "horovod"),
        default="gloo",
        help="library that sums gradients (default: %(default)s)",
    )
    parser.add_argument("--service", help="address of the scheduling service (default: train without PACE)")
    parser.add_argument("--job", help="with --service: name of the job whose schedule to fetch")
    parser.add_argument(
        "--steps",
        type=int,
        default=45,
        help="number of steps; the first 26 are not timed (default: %(default)s)",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=24,
        help="number of images in each worker's batch (default: %(default)s)",
    )
    parser.add_argument(
        "--out", type=Path, help="write weights to OUT.pt and times to OUT.json (default: not written)"
    )
    parser.add_argument(
        "--turns",
        type=Path,
        metavar="FILE",
        help="lock file; two jobs with the same file train alternately (default: train alone)",
    )
    arguments = parser.parse_args()
    if arguments.steps <= WARMUP_STEPS + 1:
        parser.error(f"--steps {arguments.steps}: expected more than {WARMUP_STEPS + 1}, which are not timed")
    return arguments


if __name__ == "__main__":
    main()
