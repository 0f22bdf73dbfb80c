"""TicTac in TensorFlow 2.21: a server that sends parameters in a given order; prints Markdown.

    python -m benchmarks papers.tictac_tensorflow --python TF/bin/python [--workers 1] [--rounds 2]

One server and asynchronous workers run on separate hosts. The server holds a parameter back until the one
before it is ready to be sent, which is as near as ops come to TicTac's counters, or until the worker has
received it. Traced steps say whether the order is in the graph that TensorFlow executed, and whether
parameters arrived in it. Needs root and an interpreter that has TensorFlow 2.21. Orders take turns.
"""

import re
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness.conditions import study_parser
from benchmarks.harness.prerequisites import require_network, require_tensorflow
from benchmarks.studies.throughput.shapes import ALL_SHAPES, shape_of
from benchmarks.studies.throughput.tensorflow_runs import run_tensorflow

ORDERS = ("tic", "reverse", "random")
HOLDS = ("sent", "received")
TRACED_STEPS = 5

# A copy that the program makes on a server, by the number of its turn.
_COPY = re.compile(r"Identity(?:_(\d+))?(?:/ReadVariableOp)?(?: from /job:ps|$)")


def turns_that_wait_for_arrivals(trace: dict[str, Any]) -> list[int]:
    """Return the turns whose reading on the server waits until the worker has the copy before.

    Control edges that TensorFlow's optimizer moved to the server are none; nor is one from a tensor that is
    sent beside the copy.
    """
    nodes = {node["name"]: node for graph in trace["partitionGraphs"] for node in graph["node"]}
    sent = {
        node["attr"]["tensor_name"]["s"]: node["input"][0] for node in nodes.values() if node["op"] == "_Send"
    }

    def copies_before(name: str, worker: bool) -> Iterator[int]:
        """Walk back from a node; yield the turns of copies that crossed to the worker on the way."""
        node = nodes[name]
        if node["op"] == "_Recv":
            source = sent[node["attr"]["tensor_name"]["s"]]
            if worker and (turn := _turn(source)) is not None:
                yield turn
                return
            yield from copies_before(source, worker=not worker)
        for before in node.get("input", []):
            yield from copies_before(before.lstrip("^").partition(":")[0], worker)

    waiting = []
    for node in nodes.values():
        turn = _turn(node["name"])
        if node["op"] == "ReadVariableOp" and turn and turn - 1 in copies_before(node["name"], worker=False):
            waiting.append(turn)
    return sorted(waiting)


def share_in_order(trace: dict[str, Any]) -> float:
    """Return the share of parameters that the worker received after the one whose turn was before."""
    ends = {}
    for device in trace["stepStats"]["devStats"]:
        for row in device["nodeStats"]:
            turn = _turn(row.get("timelineLabel", "").partition("edge_")[2].partition("_")[2])
            if row["nodeName"] == "RecvTensor" and turn is not None:
                ends[turn] = int(row["allStartMicros"]) + int(row["allEndRelMicros"])
    in_turn = [ends[turn] for turn in sorted(ends)]
    return sum(earlier < later for earlier, later in pairwise(in_turn)) / (len(in_turn) - 1)


def _turn(name: str) -> int | None:
    found = _COPY.match(name)
    return None if found is None else int(found[1] or 0)


def print_row(name: str, until: str, times: Sequence[float], plain: float, traces: Sequence[Any]) -> None:
    """Print what one order took, and what its traced steps show."""
    median, late = statistics.median(times), statistics.quantiles(times, n=20)[-1]
    cells = [name, until, f"{median * 1e3:.0f}", f"{late * 1e3:.0f}", f"{(plain / median - 1) * 100:+.1f} %"]
    if traces:
        waiting = [len(turns_that_wait_for_arrivals(trace)) for trace in traces]
        arrived = statistics.mean(map(share_in_order, traces))
        cells += [f"{min(waiting)}", f"{arrived:.0%}"]
    print("| " + " | ".join(cells) + " |", flush=True)


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

    def run(order: str, hold: str, steps: int, *, trace: bool = False) -> list[dict[str, Any]]:
        return run_tensorflow(
            given.python,
            shape,
            workers=given.workers,
            servers=1,
            link=link,
            steps=steps,
            trace=trace,
            order=order,
            hold=hold,
        )

    kinds = [("none", HOLDS[0]), *((order, hold) for hold in HOLDS for order in ORDERS)]
    steps_s: dict[tuple[str, str], list[float]] = {kind: [] for kind in kinds}
    for _ in range(given.rounds):
        for kind in kinds:
            for result in run(*kind, given.steps):
                steps_s[kind] += [later - earlier for earlier, later in pairwise(result["ends_s"])]
    plain = statistics.median(steps_s[kinds[0]])
    print("| order | held until | median step, ms | 95th percentile, ms | faster | turns held | in order |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    print_row("TensorFlow's own", "", steps_s[kinds[0]], plain, ())
    for order, hold in kinds[1:]:
        traces = run(order, hold, TRACED_STEPS, trace=True)[0]["traces"]
        print_row(order, hold, steps_s[order, hold], plain, traces)
    return 0
