"""TicTac in TensorFlow 2.21: a server that sends parameters in a given order; prints Markdown.

    python -m benchmarks papers.tictac_tensorflow --python TF/bin/python [--workers 1] [--rounds 2]

One server and asynchronous workers run on separate hosts. As with TicTac's counters, the server sends a
variable only when the worker has received the one before it; control dependencies do this. Needs root and an
interpreter that has TensorFlow 2.21. Orders take turns, and the table has ratios to TensorFlow's own order.
"""

import statistics
from itertools import pairwise
from pathlib import Path

from benchmarks.harness.conditions import study_parser
from benchmarks.harness.prerequisites import require_network, require_tensorflow
from benchmarks.studies.throughput.shapes import ALL_SHAPES, shape_of
from benchmarks.studies.throughput.tensorflow_runs import run_tensorflow

ORDERS = ("none", "tic", "reverse", "random")


def main() -> int:
    """Measure, and print the table."""
    from benchmarks.harness.network.hosts import Link

    parser = study_parser(__doc__)
    parser.add_argument("--python", type=Path, required=True, help="interpreter that has TensorFlow")
    parser.add_argument(
        "--model", choices=ALL_SHAPES, default="inception", help="model to train (default: %(default)s)"
    )
    parser.add_number("--workers", 1, "number of workers")
    parser.add_number("--rounds", 2, "number of measurements of each order")
    parser.add_number("--steps", 20, "number of steps in a measurement")
    given = parser.parse_args()
    require_network()
    require_tensorflow(given.python)
    link = Link(rate_mbit_s=100)
    shape = shape_of(given.model, total_bytes=8e6, ratio=1.0, bytes_per_s=link.rate_mbit_s * 1e6 / 8 * 0.95)
    steps_s: dict[str, list[float]] = {order: [] for order in ORDERS}
    for _ in range(given.rounds):
        for order in ORDERS:
            results = run_tensorflow(
                given.python,
                shape,
                workers=given.workers,
                servers=1,
                link=link,
                steps=given.steps,
                order=order,
            )
            for result in results:
                steps_s[order] += [later - earlier for earlier, later in pairwise(result["ends_s"])]
    plain = statistics.median(steps_s["none"])
    print("| order | median step, ms | 95th percentile, ms | faster than TensorFlow's own |")
    print("| --- | ---: | ---: | ---: |")
    for order, times in steps_s.items():
        median, late = statistics.median(times), statistics.quantiles(times, n=20)[-1]
        print(f"| {order} | {median * 1e3:.0f} | {late * 1e3:.0f} | {(plain / median - 1) * 100:+.1f} % |")
    return 0
