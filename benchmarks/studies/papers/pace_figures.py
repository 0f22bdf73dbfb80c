"""Figs. 2, 4, 8, 9 and 10 of the PACE paper (INFOCOM 2020): preemption, four models; prints Markdown.

    python -m benchmarks papers.pace_figures [--device-tflops 8]

Six policies are compared: `paper` is the paper's fusion, with segments as a network carries them. `ideal` is
the same if preemption were free, as the paper's model assumes. `pace` is ours; the others are WFBP, Horovod
and TicTac. The paper's framework (MXNet) has no barrier between iterations, so there is none here. Horovod
with a barrier is shown, too.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.harness.conditions import study_parser
from benchmarks.studies.papers.bytescheduler import three_layers
from pace import optimize
from pace.documents.collective_costs import RingAllReduce
from pace.documents.profile import Profile
from pace.models import build
from pace.simulation import make_policy, run_policy
from pace.simulation.traffic import Policy
from pace.solver.arrays import FloatArray
from pace.whatif import Scenario, profile_at

BATCHES = {"vgg16": 64, "resnet50": 32, "seq2seq": 4096, "transformer": 2048}
WORKERS = (4, 8, 12, 16)
BANDWIDTHS_GBPS = tuple(range(1, 26))
# 0.3 ms an all-reduce at 12 workers: 22 messages. The paper gives no latency.
LATENCY_S = 0.3e-3 / 22
# Figure 4's marks, in bytes, and the parts of an iteration of Figure 10.
SIZES_BYTES = (2**12, 2**16, 2**20, 2**22, 2**24)
PARTS = 10


def policies() -> dict[str, Policy]:
    """Return what is compared."""
    return {
        "wfbp": make_policy("fifo", barrier=False),
        "horovod": make_policy("horovod", barrier=False),
        "horovod, barrier": make_policy("horovod"),
        "tictac": make_policy("tao"),
        "paper": make_policy("paper"),
        "ideal": make_policy("paper", preemption="free"),
        "pace": make_policy("pace"),
    }


@dataclass(frozen=True, kw_only=True)
class Row:
    """Iteration times in seconds at one place of a figure."""

    model: str
    workers: int
    bandwidth_gbps: float
    iteration_s: dict[str, float]

    def gain(self, baseline: str, ours: str = "paper") -> float:
        """Return the speed-up of `ours` over a baseline, in per cent."""
        return (self.iteration_s[baseline] / self.iteration_s[ours] - 1) * 100


def preemption_s() -> dict[str, float]:
    """Return the window of three layers first in, first out, by priority, and with preemption; and the bound.

    The numbers of Fig. 2 were not at hand: passes of 1 s a layer and all-reduces of 1, 2 and 4 s are our own.
    """
    profile = three_layers((1, 2, 4), backward_s=1, forward_s=1)
    sent = {
        "first in, first out": make_policy("fifo", barrier=False),
        "priority": make_policy("bytescheduler", partition_bytes=1000, credit_bytes=0),
        "preemption": make_policy("paper", preemption="free"),
    }
    times = {name: run_policy(profile, policy).iteration_s for name, policy in sent.items()}
    return times | {"bound": optimize(profile).predicted.lower_bound_s}


def profile_of(model: str, device_tflops: float) -> Profile:
    """Return a model's profile on a ring."""
    ring = RingAllReduce(bandwidth_bytes_per_s=1.25e9, latency_s=LATENCY_S)
    return build(model, device_tflops=device_tflops, batch=BATCHES[model], workers=12, allreduce=ring)


def rows(
    model: str, device_tflops: float, workers: tuple[int, ...], gbps: tuple[float, ...]
) -> Iterator[Row]:
    """Yield one row a place."""
    base = profile_of(model, device_tflops)
    for count in workers:
        for bandwidth in gbps:
            point = profile_at(base, Scenario(workers=count, bandwidth_gbps=float(bandwidth)))
            times = {name: run_policy(point, policy).iteration_s for name, policy in policies().items()}
            yield Row(model=model, workers=count, bandwidth_gbps=bandwidth, iteration_s=times)


def cumulative_sizes(profile: Profile) -> tuple[FloatArray, FloatArray]:
    """Return the share of tensors, and of their bytes, in tensors of at most each of `SIZES_BYTES`."""
    sizes = np.array([gradient.size_bytes for gradient in profile.gradients])
    small = sizes <= np.array(SIZES_BYTES)[:, None]
    return small.mean(axis=1), small @ sizes / sizes.sum()


def use_of_network(profile: Profile, policy: Policy) -> FloatArray:
    """Return the share of each tenth of an iteration in which the network carries an all-reduce."""
    window = run_policy(profile, policy).windows[0]
    edges = np.linspace(0, window.iteration_s, PARTS + 1)
    inside = np.minimum(window.ends_s[:, None], edges[1:]) - np.maximum(window.starts_s[:, None], edges[:-1])
    busy: FloatArray = np.maximum(inside, 0).sum(axis=0) / np.diff(edges)
    return busy


def show_sizes() -> None:
    """Print Figure 4: cumulative sizes of tensors, by number and by bytes."""
    marks = " | ".join(f"{size // 1024:,} KiB" for size in SIZES_BYTES)
    print(f"| model | tensors | largest, MB | {marks} |")
    print("| --- |" + " ---: |" * (2 + len(SIZES_BYTES)))
    for model in BATCHES:
        profile = profile_of(model, 8.0)
        sizes = [gradient.size_bytes for gradient in profile.gradients]
        shares = zip(*cumulative_sizes(profile), strict=True)
        cells = [f"{of_tensors:.0%}, {of_bytes:.1%}" for of_tensors, of_bytes in shares]
        print(f"| {model} | {len(sizes)} | {max(sizes) / 1e6:.0f} | {' | '.join(cells)} |")


def show_use(device_tflops: float) -> None:
    """Print Figure 10: use of the network over an iteration, with 12 workers at 10 Gb/s."""
    print("| model | policy | ms | " + " | ".join(f"{part}" for part in range(1, PARTS + 1)) + " | mean |")
    print("| --- | --- |" + " ---: |" * (2 + PARTS))
    for model in BATCHES:
        profile = profile_of(model, device_tflops)
        for name in ("wfbp", "horovod", "paper"):
            use = use_of_network(profile, policies()[name])
            time = run_policy(profile, policies()[name]).iteration_s
            cells = " | ".join(f"{share:.0%}" for share in use)
            print(f"| {model} | {name} | {time * 1e3:.0f} | {cells} | {use.mean():.0%} |")


def show(made: list[Row]) -> None:
    """Print rows as a table."""
    print(
        "| model | workers | Gb/s | paper ms | ideal ms | pace ms | WFBP | Horovod | its barrier | TicTac |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for row in made:
        times = " | ".join(f"{row.iteration_s[name] * 1e3:.1f}" for name in ("paper", "ideal", "pace"))
        gains = " | ".join(
            f"{row.gain(name):.1f} %" for name in ("wfbp", "horovod", "horovod, barrier", "tictac")
        )
        print(f"| {row.model} | {row.workers} | {row.bandwidth_gbps:g} | {times} | {gains} |")


def main() -> None:
    """Print the figures, and where the gains peak."""
    parser = study_parser(__doc__)
    parser.add_number("--device-tflops", 8.0, "compute rate of the device in TFLOP/s")
    tflops = parser.parse_args().device_tflops
    print("\n### Fig. 2: an example of preemption\n")
    print(", ".join(f"{name} {seconds:g} s" for name, seconds in preemption_s().items()))
    print("\n### Fig. 4: share of tensors, and of bytes, in tensors of at most a size\n")
    show_sizes()
    print(f"\n### Fig. 10: use of the network in each tenth of an iteration, {tflops:g} TFLOPS sustained\n")
    show_use(tflops)
    print(f"\n### Fig. 8: 10 Gb/s, {tflops:g} TFLOPS sustained\n")
    show([row for model in BATCHES for row in rows(model, tflops, WORKERS, (10.0,))])
    over_bandwidth = {model: list(rows(model, tflops, (12,), BANDWIDTHS_GBPS)) for model in BATCHES}
    print(f"\n### Fig. 9: 12 workers, {tflops:g} TFLOPS sustained\n")
    shown = (1, 2, 4, 6, 8, 10, 12, 14, 16, 20, 25)
    show([row for made in over_bandwidth.values() for row in made if row.bandwidth_gbps in shown])
    print("\n### Where the gain over Horovod peaks\n")
    print("| model | no barrier | at Gb/s | at 20 Gb/s | with its barrier | at Gb/s | at 20 Gb/s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for model, made in over_bandwidth.items():
        cells = []
        for baseline in ("horovod", "horovod, barrier"):
            peak = max(made, key=lambda row: row.gain(baseline))
            at_20 = next(row for row in made if row.bandwidth_gbps == 20)
            cells += [
                f"{peak.gain(baseline):.0f} %",
                f"{peak.bandwidth_gbps:g}",
                f"{at_20.gain(baseline):.0f} %",
            ]
        print(f"| {model} | {' | '.join(cells)} |")
