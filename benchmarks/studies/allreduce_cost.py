"""Cost of an all-reduce measured in slices during training, compared with long measurements.

    sudo python -m benchmarks allreduce_cost [--hosts 4] [--rate-mbit-s 200] [--mebibytes 32] [--rounds 3]

Runs on the testbed's hosts (docs/guides/measure.md), over the transport of gradients. Each round measures
three ways in turn:

- the reference: 20 runs of each size, or 3 s
- a measurement without pauses, half a second for each size
- slices with pauses in between, as jobs that profile themselves measure

Errors are differences of the cost curves from the mean of all references, at sizes that no way measured.
"""

import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch

from benchmarks.harness.conditions import study_parser, write_json
from benchmarks.harness.network.hosts import Host, Link, hosts
from benchmarks.harness.network.joining import join_torch
from benchmarks.harness.network.processes import Answer, ranks
from benchmarks.harness.prerequisites import require_network
from pace.runtime.capture.cost_sampler import CostSampler
from pace.runtime.capture.self_profile import TransportNetwork
from pace.runtime.profiler import AllReduceMeasurement, measure_allreduce
from pace.runtime.transports.gloo import GlooTransport

PORT = 19100
SLICES = 25
PAUSE_S = 0.05
PROBED_BYTES = (2_000, 10_000, 50_000, 200_000, 700_000, 2_500_000, 10_000_000, 30_000_000)
WAYS = ("reference", "in one go", "in slices")


def _main(rank: int, on: Sequence[Host]) -> Answer:
    torch.set_num_threads(1)

    def answer(_request: str, arguments: tuple[Any, ...]) -> Any:
        largest_bytes, rounds = arguments
        join_torch(rank, on, PORT)
        network = TransportNetwork(GlooTransport(timeout_s=300.0), torch.device("cpu"), timeout_s=300.0)
        found = []
        for _ in range(rounds):
            of_round = {}
            for way in WAYS:
                network.barrier()
                started = time.perf_counter()
                measured, longest_s = _measure(way, network, largest_bytes)
                of_round[way] = measured.document, time.perf_counter() - started, longest_s
            found.append(of_round)
        return found

    return answer


def _measure(way: str, network: TransportNetwork, largest_bytes: int) -> tuple[AllReduceMeasurement, float]:
    """Measure in one way; also return the longest time for which training would have stood still."""
    started = time.perf_counter()
    if way == "reference":
        measured = measure_allreduce(network, largest_bytes=largest_bytes, max_runs=20, pairs=False)
        return measured, time.perf_counter() - started
    if way == "in one go":
        measured = measure_allreduce(
            network,
            largest_bytes=largest_bytes,
            precision=0.1,
            max_runs=10,
            max_seconds_per_size=0.5,
            warmup_calls=1,
            pairs=False,
        )
        return measured, time.perf_counter() - started
    sampler = CostSampler(network, largest_bytes=largest_bytes, slices=SLICES)
    slices = []
    for _ in range(SLICES):
        time.sleep(PAUSE_S)
        started = time.perf_counter()
        sampler.advance()
        slices.append(time.perf_counter() - started)
    started = time.perf_counter()
    measured = sampler.finish()
    slices.append(time.perf_counter() - started)
    return measured, max(slices)


def measure(num_hosts: int, rate_mbit_s: float, largest_bytes: int, rounds: int) -> dict[str, Any]:
    """Return each way's duration, its longest standstill and its errors by size."""
    with (
        hosts([Link(rate_mbit_s=rate_mbit_s)] * num_hosts) as on,
        ranks("cost", on, _main, on) as group,
    ):
        said = group.ask("measure", largest_bytes, rounds, timeout_s=1800)[0]
    probed = [size for size in PROBED_BYTES if size <= largest_bytes]
    curves = {way: [each[way][0].cost(num_hosts) for each in said] for way in WAYS}
    true_s = [statistics.mean(float(curve(size)) for curve in curves["reference"]) for size in probed]
    return {
        "probed_bytes": probed,
        "reference_s": true_s,
        "ways": {
            way: {
                "duration_s": statistics.median(each[way][1] for each in said),
                "longest_standstill_s": statistics.median(each[way][2] for each in said),
                "largest_sample_bytes": max(size for size, _ in said[0][way][0].samples),
                "errors": [
                    [float(curve(size)) / true - 1 for size, true in zip(probed, true_s, strict=True)]
                    for curve in curves[way]
                ],
            }
            for way in WAYS
        },
    }


def main() -> None:
    """Measure and print."""
    parser = study_parser(__doc__, writes_json=True)
    parser.add_number("--hosts", 4, "number of hosts")
    parser.add_number("--rate-mbit-s", 200.0, "bandwidth of every link in Mbit/s")
    parser.add_number("--mebibytes", 32, "size of all gradients in MiB")
    parser.add_number("--rounds", 3, "number of measured rounds")
    arguments = parser.parse_args()
    require_network()
    torch.set_num_threads(1)
    found = measure(arguments.hosts, arguments.rate_mbit_s, arguments.mebibytes << 20, arguments.rounds)
    print(
        f"{arguments.hosts} hosts, {arguments.rate_mbit_s:g} Mbit/s, {arguments.mebibytes} MiB of gradients"
    )
    print(f"{'bytes':28}", *(f"{size:>10,}" for size in found["probed_bytes"]))
    print(f"{'reference, ms':28}", *(f"{value * 1e3:10.2f}" for value in found["reference_s"]))
    for way, each in found["ways"].items():
        worst = [max(column, key=abs) for column in zip(*each["errors"], strict=True)]
        print(f"{way + ', worst error':28}", *(f"{error:+10.1%}" for error in worst))
    for way, each in found["ways"].items():
        print(
            f"{way}: {each['duration_s']:.1f} s, at most {each['longest_standstill_s']:.2f} s at a time,"
            f" samples up to {each['largest_sample_bytes']:,} bytes"
        )
    write_json(arguments.json, found)
