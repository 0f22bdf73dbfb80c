"""Examples a second with embedding tables on a server: PACE, torch's RPC tutorial, and TensorFlow.

    python -m benchmarks embedding [--workers 2] [--rows 1000000] [--steps 100] [--json OUT.json]
    python -m benchmarks embedding --model dlrm [--tables 8] [--prefetch] [--tensorflow TF/bin/python]

Workers train an embedding bag on a server and a linear layer of their own, on bags of 5 keys of which few are
frequent, by SGD. With ``--model dlrm`` there are several tables, 13 numbers for each example, layers below
and above the dot products of all pairs, and DDP averages the layers of all workers, as in the tutorial. Every
contender trains the same model on the same batches. The tutorial's server ("Combining DDP with Distributed
RPC") has an ``nn.EmbeddingBag`` with sparse gradients: workers send keys, get pooled bags, and updates are
applied as they arrive. PACE's server sends rows, and trains in step (sync) or as updates arrive (async). With
``--tensorflow``, TensorFlow's parameter server is measured, too: it sends rows, holds the layers of a DLRM as
well, and applies updates as they arrive.

Each runs in processes of its own, in turns. Printed are the medians of the turns: examples a second,
processor time of all processes for 1,000 examples, and the bytes that PACE's worker sent and received in a
step.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.harness.conditions import study_parser, write_json
from benchmarks.harness.prerequisites import require_tensorflow
from benchmarks.studies.embedding.pace_tables import run_pace
from benchmarks.studies.embedding.tensorflow_servers import run_tensorflow
from benchmarks.studies.embedding.torch_rpc import run_torch_rpc
from benchmarks.studies.embedding.workload import Turn

CONTENDERS: dict[str, Callable[[argparse.Namespace], Turn]] = {
    "torch RPC": run_torch_rpc,
    "TensorFlow": run_tensorflow,
    "PACE async": partial(run_pace, staleness=None),
    "PACE sync": partial(run_pace, staleness=0),
}


def main() -> int:
    """Print examples a second of each contender."""
    parser = study_parser(__doc__, writes_json=True)
    parser.add_number("--workers", 2, "number of worker processes")
    parser.add_argument(
        "--model",
        choices=("linear", "dlrm"),
        default="linear",
        help="model over the tables (default: %(default)s)",
    )
    parser.add_argument("--tables", type=int, help="number of tables (default: 1; 8 with dlrm)")
    parser.add_argument(
        "--prefetch", action="store_true", help="with PACE, ask for the next batch's rows early"
    )
    parser.add_number("--rows", 1_000_000, "number of rows of all tables, 64 numbers each")
    parser.add_number("--batch", 512, "number of bags in a worker's batch, 5 keys each")
    parser.add_number("--steps", 100, "number of steps in a measurement")
    parser.add_number("--turns", 3, "number of measurements of each contender")
    parser.add_argument("--tensorflow", type=Path, help="interpreter that has TensorFlow, to measure it too")
    parser.add_argument("--only", choices=CONTENDERS, help="measure only this contender (default: all)")
    options = parser.parse_args()
    if options.only == "TensorFlow" and options.tensorflow is None:
        parser.error("--only TensorFlow: expected --tensorflow, an interpreter that has it")
    if options.tensorflow is not None:
        require_tensorflow(options.tensorflow)
    options.tables = options.tables or (8 if options.model == "dlrm" else 1)
    names = [options.only] if options.only else list(CONTENDERS)
    if options.tensorflow is None:
        names = [name for name in names if name != "TensorFlow"]
    found: dict[str, list[Turn]] = {name: [] for name in names}
    for _ in range(options.turns):
        for name in names:
            found[name].append(CONTENDERS[name](options))
            print(f"{name}: {found[name][-1].examples_per_s:,.0f} examples/s", file=sys.stderr, flush=True)
    for name, turns in found.items():
        rate, cpu_s, carried = (statistics.median(each) for each in zip(*turns, strict=True))
        more = f", {carried / 1e6:.2f} MB a step and worker" if carried else ""
        print(f"{name}: {rate:,.0f} examples/s, {cpu_s * 1000:.0f} ms of processor for 1,000 examples{more}")
    write_json(options.json, {"examples_per_s_processor_s_and_bytes": found})
    return 0
