"""ByteScheduler (SOSP 2019): its contrived three-layer example and Table 1's trend; prints Markdown.

python -m benchmarks papers.bytescheduler
"""

from itertools import product

from pace import Gradient, Op, Profile
from pace.documents.collective_costs import AffineAllReduce, RingAllReduce
from pace.models import build, with_ratio
from pace.simulation import make_policy, run_policy

BATCHES = {"vgg16": 64, "resnet50": 32, "transformer": 2048}
# ByteScheduler's best partition and credit under NCCL, in MB (Table 1).
PUBLISHED_MB = {"vgg16": (88, 171), "resnet50": (56, 64), "transformer": (56, 103)}
PARTITIONS_MB = (0.2, 0.5, 1, 2, 4, 8, 16, 32, 64, 128)
CREDITS_IN_PARTITIONS = (0, 1, 2, 4)
WORKERS = 32
LATENCY_S = 3e-5
# Parts count as equally good within this.
TIE = 1.002


def three_layers(
    sizes: tuple[int, int, int] = (1, 4, 8), backward_s: float = 1, forward_s: float = 4
) -> Profile:
    """Return layers 0 to 2 whose gradients take `sizes` seconds on the network; the last is ready first."""
    backward = [Op(name=f"bwd/{layer}", duration_s=backward_s, stream="compute") for layer in (2, 1, 0)]
    forward = [
        Op(name=f"fwd/{layer}", duration_s=forward_s, stream="compute", waits_for=(str(layer),))
        for layer in (0, 1, 2)
    ]
    return Profile(
        name="three layers",
        workers=2,
        ops=(*backward, *forward),
        gradients=tuple(
            Gradient(name=str(layer), size_bytes=sizes[layer], dtype="int8", producer=f"bwd/{layer}")
            for layer in (2, 1, 0)
        ),
        allreduce=AffineAllReduce(latency_s=0.0, seconds_per_byte=1.0),
    )


def example_s() -> tuple[float, float]:
    """Return the example's window under FIFO and under priority with parts of one second."""
    profile = three_layers()
    fifo = run_policy(profile, make_policy("fifo", barrier=False)).iteration_s
    parts = make_policy("bytescheduler", partition_bytes=1, credit_bytes=0)
    return fifo, run_policy(profile, parts).iteration_s


def best_partition(profile: Profile) -> tuple[float, float, float]:
    """Return the smallest partition within 0.2 % of the best, its credit (both in MB), and its time."""
    tried = []
    for partition, parts in product(PARTITIONS_MB, CREDITS_IN_PARTITIONS):
        policy = make_policy(
            "bytescheduler",
            partition_bytes=int(partition * 1e6),
            credit_bytes=int(partition * parts * 1e6),
        )
        tried.append((run_policy(profile, policy).iteration_s, partition, partition * parts))
    least = min(tried)[0]
    good = [trial for trial in tried if trial[0] <= least * TIE]
    time, partition, credit = min(good, key=lambda trial: trial[1:])
    return partition, credit, time


def main() -> None:
    """Print the example and the table."""
    fifo, parts = example_s()
    gain = (fifo / parts - 1) * 100
    print(f"\nThree layers: FIFO {fifo:g} s, priority and partition {parts:g} s: {gain:.1f} %\n")
    print("| model | all-reduce: partition MB | credit MB | stop-and-wait: partition MB | published (NCCL) |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for model, batch in BATCHES.items():
        ring = RingAllReduce(bandwidth_bytes_per_s=1e9, latency_s=LATENCY_S)
        base = with_ratio(build(model, device_tflops=8.0, batch=batch, workers=WORKERS, allreduce=ring), 1.0)
        partition, credit, _ = best_partition(base)
        # A push and a pull take one message each; bytes cost as much as the ring's.
        line = AffineAllReduce(latency_s=2 * LATENCY_S, seconds_per_byte=base.cost.slope_beyond)
        alone, _, _ = best_partition(base.replace(allreduce=line))
        print(f"| {model} | {partition:g} | {credit:g} | {alone:g} | {PUBLISHED_MB[model]} |")
