"""Times of torch's own overlap pass on the graphs of meta-pytorch/autoparallel; writes their node lists.

    git clone https://github.com/meta-pytorch/autoparallel
    python -m benchmarks sharded_graphs.torch_pass autoparallel/autoparallel/tools/overlap_simulator GRAPHS

Each repro_NAME.py is traced on the CPU, which runs its code, and written to GRAPHS as a node list, with its
table of collective times. `python -m benchmarks sharded_graphs GRAPHS --rivals` plans these. Then the pass
runs with the same durations, the roofline of an H100, and its result is timed. GRAPHS/torch-pass.json keeps
finished results: an interrupted run goes on from there.
"""

import json
import multiprocessing
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from benchmarks.harness.conditions import machine, study_parser, write_whole
from benchmarks.harness.network.joining import die_with_parent

PREFIX = "repro_"
RECORD = "torch-pass.json"


def main() -> int:
    """Trace every graph, run the pass, and print a table."""
    parser = study_parser(__doc__)
    parser.add_argument("repros", type=Path, help="folder of the overlap simulator: repro_*.py and tables")
    parser.add_argument("graphs", type=Path, help="folder for node lists, tables and results")
    parser.add_argument(
        "--only", default="", help="regular expression: run only graphs whose names match it (default: all)"
    )
    arguments = parser.parse_args()
    paths = [
        path
        for path in sorted(arguments.repros.glob(f"{PREFIX}*.py"))
        if re.search(arguments.only, path.stem.removeprefix(PREFIX))
    ]
    if not paths:
        print(f"torch_pass: {arguments.repros} has no {PREFIX}*.py of that name", file=sys.stderr)
        return 2
    arguments.graphs.mkdir(parents=True, exist_ok=True)
    record = arguments.graphs / RECORD
    done: dict[str, Any] = json.loads(record.read_text())["graphs"] if record.exists() else {}
    failed, header = False, True
    for path in paths:
        name = path.stem.removeprefix(PREFIX)
        if name not in done:
            try:
                done[name] = _in_a_process(path, name, arguments.graphs)
            except Exception as error:  # of torch or of the graph's code; the other graphs go on
                print(f"torch_pass: {name}: {type(error).__name__}: {error}", file=sys.stderr)
                failed = True
                continue
            write_whole(record, json.dumps({"conditions": machine(), "graphs": done}, indent=1) + "\n")
        _print(name, done[name], header=header)
        header = False
    return int(failed)


def _in_a_process(path: Path, name: str, graphs: Path) -> dict[str, Any]:
    """Run the pass in a process of its own: a graph's code changes torch's settings."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(_run, path, name, graphs).result()
        except BrokenProcessPool:
            raise MemoryError("the process was killed; the memory may not suffice") from None


def _run(path: Path, name: str, graphs: Path) -> dict[str, Any]:
    from benchmarks.studies.sharded_graphs.traced import run_pass

    die_with_parent()
    return run_pass(path, name, graphs)


def _print(name: str, row: dict[str, Any], *, header: bool) -> None:
    columns = {
        "as_traced_ms": "as traced",
        "torch_ms": "by torch's",
        "views_free_ms": "views free",
        "torch_peak_gb": "peak GB",
        "calls": "calls",
        "pass_s": "pass s",
    }
    if header:
        print(f"{'graph':24}" + "".join(f" {title:>10}" for title in columns.values()))
    print(f"{name:24}" + "".join(f" {row[key]:10.5g}" for key in columns), flush=True)
