"""Figs. 3, 8 and 9 of the PACE paper (INFOCOM 2020): preemption, and four models; prints Markdown.

    python -m benchmarks papers.pace_figures [--device-tflops 8]

Six policies are compared: `paper` is the paper's fusion, with segments as a network carries them. `ideal` is
the same if preemption were free, as the paper's model assumes. `pace` is ours; the others are WFBP, Horovod
and TicTac. The paper's framework (MXNet) has no barrier between iterations, so there is none here. Horovod
with a barrier is shown, too.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.harness.conditions import study_parser
from benchmarks.studies.papers.bytescheduler import three_layers
from pace import optimize
from pace.documents.collective_costs import RingAllReduce
from pace.documents.profile import Profile
from pace.models import build
from pace.simulation import make_policy, run_policy
from pace.simulation.traffic import Policy
from pace.whatif import Scenario, profile_at

BATCHES = {"vgg16": 64, "resnet50": 32, "seq2seq": 4096, "transformer": 2048}
WORKERS = (4, 8, 12, 16)
BANDWIDTHS_GBPS = tuple(range(1, 26))
# 0.3 ms an all-reduce at 12 workers: 22 messages. The paper gives no latency.
LATENCY_S = 0.3e-3 / 22


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

    The numbers of Fig. 3 were not at hand: passes of 1 s a layer and all-reduces of 1, 2 and 4 s are our own.
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
    """Print both figures and where the gains peak."""
    parser = study_parser(__doc__)
    parser.add_number("--device-tflops", 8.0, "compute rate of the device in TFLOP/s")
    tflops = parser.parse_args().device_tflops
    print("\n### Fig. 3: an example of preemption\n")
    print(", ".join(f"{name} {seconds:g} s" for name, seconds in preemption_s().items()))
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
