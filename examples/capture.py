"""Captures the profile of a training job and gets its schedule. Every worker runs this program.

torchrun --nproc-per-node 2 examples/capture.py --service http://127.0.0.1:8080 --job my-job
horovodrun -np 2 python examples/capture.py --backend horovod --service ... --job my-job
"""

import argparse
from pathlib import Path

import torch
from cnn import Batches, build_model
from torch.nn.functional import cross_entropy
from workers import join, leave

from pace.client import Client
from pace.runtime.profiler import (
    Capture,
    gradient_bytes,
    horovod_network,
    measure_allreduce,
    measure_contention,
    torch_network,
)

# So large all-reduces run beside compute while its slow-down is measured.
BESIDE_BYTES = 1 << 20


def main() -> None:
    """Run one worker."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    rank, workers = join(arguments.backend, pace=True)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = Batches(rank, arguments.batch_size)

    def iterate() -> None:
        images, labels = batches.next()
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()

    # 1. The compute: your own training loop, on the model and the optimizer as they are before any wrapper.
    with Capture(model, optimizer, iterations=10) as capture:
        while not capture.finished:
            iterate()
            capture.step()

    # 2. The network, and how it slows compute down: all ranks measure together.
    network = horovod_network() if arguments.backend == "horovod" else torch_network()
    measured = measure_allreduce(
        network, largest_bytes=gradient_bytes(model), max_seconds_per_size=0.25, warmup_calls=1
    )
    contention = measure_contention(iterate, network, size_bytes=BESIDE_BYTES, pairs=8)

    # 3. The schedule: one rank submits the profile; the workers fetch the answer when they train.
    if rank == 0:
        profile = capture.profile(
            arguments.job,
            workers=workers,
            allreduce=measured.document,
            metadata=measured.metadata,
            compute_slowdown=contention.compute_slowdown,
            load=contention.load,
            iteration_s=contention.iteration_s,
        )
        with Client(arguments.service, timeout_s=60) as client:
            schedule = client.create_schedule(profile, job=arguments.job)
        print(capture.report)
        print(f"compute takes {contention.compute_slowdown:.2f} times as long during all-reduces")
        added_s = dict(contention.added_s).get(BESIDE_BYTES, 0.0)
        print(f"an all-reduce of 1 MiB takes {added_s * 1e3:.2f} ms more during compute")
        if not measured.one_at_a_time:
            print(
                "Two all-reduces at once were faster than one after the other: the schedule is pessimistic."
            )
        if arguments.out is not None:
            (arguments.out / "profile.json").write_bytes(profile.to_json())
            (arguments.out / "schedule.json").write_bytes(schedule.to_json())
            (arguments.out / "capture.txt").write_text(str(capture.report))
    leave(arguments.backend)


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
    parser.add_argument("--service", required=True, help="address of the scheduling service")
    parser.add_argument("--job", required=True, help="name under which workers request the schedule")
    parser.add_argument(
        "--batch-size",
        type=int,
        default=24,
        help="number of images in each worker's batch (default: %(default)s)",
    )
    parser.add_argument(
        "--out", type=Path, help="folder for the profile and the schedule (default: not written)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
