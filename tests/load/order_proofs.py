"""Proofs that small jobs cannot hang, compared with every execution of them, and a large job's proof timed.

    .venv/bin/python -m tests.load.order_proofs [--jobs 20000] [--ranks 1000] [--collectives 10000]

Exit status 1 if a random job is judged differently (``tests/pace/order/model_checker.py``). The large job
has three groups for each rank, as with tensor, data and global parallelism, and waits at random, so that no
two ranks have one program. Its proof is timed without reading a document, after one small proof that
compiles the code.
"""

import argparse
import sys
import time

import numpy as np

from pace.solver.collective_order.decision import decide
from pace.solver.collective_order.operations import Operations
from tests.pace.order.test_agreement import disagreement

TENSOR_PARALLEL = 8


def large_job(num_ranks: int, num_collectives: int) -> Operations:
    """Return a job without faults whose ranks wait at different places."""
    random = np.random.default_rng(0)
    group = random.integers(0, 3, num_collectives)
    size_bytes = random.integers(1, 1 << 20, num_collectives)
    num_ops = num_ranks * num_collectives
    rank = np.repeat(np.arange(num_ranks), num_collectives)
    groups = np.tile(group, num_ranks)
    ranks = np.arange(num_ranks)
    communicator = np.empty(3 * num_ranks, np.int64)
    communicator[0::3] = 0
    communicator[1::3] = 1 + ranks // TENSOR_PARALLEL
    communicator[2::3] = 1 + -(-num_ranks // TENSOR_PARALLEL) + ranks % TENSOR_PARALLEL
    return Operations(
        thread=rank,
        stream=rank * 4 + 3,
        queue=rank * 4 + groups,
        seat=rank * 3 + groups,
        waits=random.choice(np.array([0, 0, 1, 2]), num_ops),
        kind=groups,
        dtype=np.zeros(num_ops, np.int64),
        size_bytes=np.tile(size_bytes, num_ranks),
        is_batched=np.zeros(num_ops, np.bool_),
        device=np.full(num_ops, -1),
        seat_communicator=communicator,
        seat_is_ordered=np.ones(3 * num_ranks, np.bool_),
    )


def main() -> int:
    """Compare and time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=20_000, help="Random jobs to compare (default: 20000)")
    parser.add_argument("--ranks", type=int, default=1_000, help="Ranks of the large job (default: 1000)")
    parser.add_argument("--collectives", type=int, default=10_000, help="Of each rank (default: 10000)")
    options = parser.parse_args()

    assert decide(large_job(8, 10)).cannot_hang
    job = large_job(options.ranks, options.collectives)
    began, cpu = time.perf_counter(), time.process_time()
    assert decide(job).cannot_hang
    print(
        f"{options.ranks} ranks x {options.collectives} collectives: proved in "
        f"{time.perf_counter() - began:.1f} s, {time.process_time() - cpu:.1f} s of CPU time"
    )
    different = 0
    for seed in range(options.jobs):
        if (found := disagreement(seed)) is not None:
            different += 1
            print(found)
    print(f"{options.jobs} random jobs, {different} judged differently")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
