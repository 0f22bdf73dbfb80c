"""Figures 10 and 22 of the throughput paper, from the repository's recorded steps; prints Markdown.

    python -m benchmarks papers.throughput_figures

The records are steps of TensorFlow 2.21 that the tests read: four layers over links of 50 Mbit/s.
"""

import time
from pathlib import Path

import numpy as np

from benchmarks.harness.conditions import study_parser
from pace import InvalidOptions
from pace.documents.steps import StepsDocument
from pace_servers.documents.prediction import PredictionOptions
from pace_servers.tf_run_metadata import read_tf_run_metadata
from pace_servers.throughput import predict
from pace_servers.throughput.recorded_steps import fit_overhead

RECORDED = Path(__file__).parents[3] / "tests" / "pace_servers" / "throughput" / "recorded"
LINK_BYTES_PER_S = 50e6 / 8 * 0.958
WORKERS = tuple(range(1, 11))
MEASURED_STEPS, PROFILED_STEPS = 100, 30


def recorded(servers: str) -> StepsDocument:
    """Return the recorded steps with one or two servers."""
    path = RECORDED / f"tensorflow-2.21-{servers}-server{'s' * (servers != 'one')}.json.gz"
    return read_tf_run_metadata([path], bytes_per_s=LINK_BYTES_PER_S)


def lone_transfers(document: StepsDocument) -> tuple[np.ndarray, np.ndarray]:
    """Return bytes and seconds of the recorded pushes that were alone on their link from start to end."""
    sizes, seconds = [], []
    for step in document.steps:
        assert step.start_s is not None
        spans = sorted(
            (start, start + duration, op.size_bytes)
            for op, start, duration in zip(document.ops, step.start_s, step.duration_s, strict=True)
            if op.resource == "uplink" and op.size_bytes
        )
        for at, (start, end, size) in enumerate(spans):
            free = at == 0 or spans[at - 1][1] <= start
            if free and (at + 1 == len(spans) or end <= spans[at + 1][0]):
                sizes.append(size)
                seconds.append(end - start)
    return np.array(sizes, dtype=np.float64), np.array(seconds)


def parsing() -> None:
    """Print Fig. 10: alpha and beta from what lone pushes take beyond their bytes at the link's rate."""
    print("| records | lone pushes | sizes | alpha, s/B | beta, ms | median beyond the link's time, ms |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for servers in ("one", "two"):
        sizes, seconds = lone_transfers(recorded(servers))
        beyond = seconds - sizes / LINK_BYTES_PER_S
        try:
            line = fit_overhead(sizes, np.maximum(beyond, 0))
            fitted = f"{line.seconds_per_byte:.2g} | {line.seconds * 1e3:.2f}"
        except InvalidOptions:
            fitted = "one size | one size"
        shown = f"{len(sizes)} | {len(np.unique(sizes))} | {fitted} | {np.median(beyond) * 1e3:+.2f}"
        print(f"| {servers} | {shown} |")


def cost() -> None:
    """Print Fig. 22: seconds to measure 1 to 10 workers, beside those to profile one and to predict."""
    document = recorded("one")
    options = PredictionOptions(workers=WORKERS, steps=MEASURED_STEPS, skip=MEASURED_STEPS // 2, advice=False)
    predict(document, options, threads=1)  # compiles
    began = time.process_time()
    points = predict(document, options, threads=1).points
    predicting = time.process_time() - began
    rates = {point.workers: point.throughput / document.batch for point in points}
    measuring = sum(MEASURED_STEPS * workers / rates[workers] for workers in WORKERS)
    profiling = PROFILED_STEPS / rates[1]
    print("| seconds | the paper | here |")
    print("| --- | ---: | ---: |")
    print(f"| measuring {MEASURED_STEPS} steps of 1 to 10 workers | 581 | {measuring:.0f} |")
    print(f"| profiling {PROFILED_STEPS} steps | | {profiling:.0f} |")
    print(f"| predicting, of the processor | | {predicting:.2f} |")
    print(f"| profiling and predicting | 117 | {profiling + predicting:.0f} |")


def main() -> None:
    """Print both tables."""
    study_parser(__doc__).parse_args()
    parsing()
    print()
    cost()
