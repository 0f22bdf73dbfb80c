"""Planned graphs of sharded training: time, bound, memory and planning time of a folder of node lists."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.studies.sharded_graphs.torch_memory import torch_peak_bytes
from pace.checker import check
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.options import Options
from pace.documents.schedule import Schedule
from pace.errors import PaceError
from pace.formats.node_list import read_node_list, read_times
from pace.formats.reading import stream_json
from pace.planning.graph.arrays import program_of
from pace.planning.graph.optimize import optimize_graph
from pace.planning.optimize import warm_up
from pace.solver.graph.list_schedule import UNLIMITED, ListScheduler

GIGABYTE = 1e9


def main() -> int:
    """Plan every node list of a folder and print a table."""
    options = _options()
    try:
        warm_up()
        times = [read_times(path) for path in sorted(options.folder.glob("*.table"))]
        paths = sorted(path for path in options.folder.iterdir() if path.name.endswith((".json", ".json.gz")))
        if not paths:
            print(f"sharded_graphs: {options.folder} holds no .json or .json.gz", file=sys.stderr)
            return 2
        rows = []
        for path in paths:
            graph = read_node_list(path, times=times, copy_bytes_per_s=options.memory_gbytes_per_s * GIGABYTE)
            rows.append(_row(path, graph, options.memory_gb, options.memory_factor))
            _print(rows[-1], header=len(rows) == 1)
    except PaceError as error:
        print(f"sharded_graphs: {error}", file=sys.stderr)
        return 1
    if options.json is not None:
        options.json.write_text(json.dumps({"graphs": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder", type=Path, help="node lists (.json, .json.gz) and tables of collective times (.table)"
    )
    parser.add_argument("--json", type=Path, help="write plans and numbers here")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--memory-gb", type=float, help="memory budget of every graph")
    budget.add_argument(
        "--memory-factor",
        type=float,
        default=1.06,
        help="memory budget as a multiple of what each graph uses as it is (default: %(default)s)",
    )
    parser.add_argument(
        "--memory-gbytes-per-s",
        type=float,
        default=3350,
        help="rate of the device's memory (default: H100's 3350)",
    )
    return parser.parse_args()


def _row(path: Path, graph: CollectiveGraph, memory_gb: float | None, memory_factor: float) -> dict[str, Any]:
    """Plan one graph; its plan is told in the numbers of the node list."""
    program = program_of(graph)
    as_it_is = ListScheduler(program, UNLIMITED).as_it_is()
    budget = int(as_it_is.peak_bytes * memory_factor) if memory_gb is None else int(memory_gb * GIGABYTE)
    began = time.perf_counter()
    schedule = optimize_graph(graph, Options(memory_bytes=budget))
    planning_s = time.perf_counter() - began
    violations = check(graph, schedule)
    if violations:
        raise PaceError(f"{path}: the checker refuses the plan: {violations[0]}")
    copies = 2 * sum(
        call.input_bytes + call.output_bytes
        for group in schedule.groups
        if len(group.tensors) > 1
        for call in (graph.nodes[graph.numbers[name]].collective for name in group.tensors)
        if call is not None
    )
    rows = list(stream_json(path, "item"))
    plan = _plan(rows, graph, schedule)
    return {
        "name": graph.name,
        "nodes": len(graph.nodes),
        "planned_ms": schedule.predicted.iteration_s * 1e3,
        "bound_ms": schedule.predicted.lower_bound_s * 1e3,
        "compute_ms": (schedule.predicted.compute_s + copies / graph.copy_bytes_per_s) * 1e3,
        "as_traced_ms": as_it_is.end_s * 1e3,
        "peak_bytes": schedule.predicted.peak_bytes,
        "torch_peak_bytes": torch_peak_bytes(rows, plan),
        "as_traced_peak_bytes": as_it_is.peak_bytes,
        "budget_bytes": budget,
        "planning_s": planning_s,
        "method": schedule.solver.method,
        "plan": plan,
    }


def _plan(rows: list[dict[str, Any]], graph: CollectiveGraph, schedule: Schedule) -> list[int | list[int]]:
    """Return the node list's numbers in the order of the plan; a bucket is a list where it is issued."""
    listed = {row["name"]: row["i"] for row in rows}
    bucket_of = {
        name: group.tensors for group in schedule.groups for name in group.tensors if len(group.tensors) > 1
    }
    plan: list[int | list[int]] = []
    issued: set[str] = set()
    for number in schedule.graph_plan.order:
        name = graph.nodes[number].name
        if name in issued:
            continue
        bucket = bucket_of.get(name)
        if bucket is None:
            plan.append(listed[name])
        else:
            issued.update(bucket)
            plan.append([listed[member] for member in bucket])
    return plan


def _print(row: dict[str, Any], *, header: bool) -> None:
    if header:
        print(
            f"{'graph':28} {'traced':>8} {'planned':>8} {'bound':>8} {'gap':>6} {'compute':>8} "
            f"{'peak GB':>8} {'torch GB':>8} {'plan s':>6}"
        )
    print(
        f"{row['name']:28} {row['as_traced_ms']:8.1f} {row['planned_ms']:8.1f} {row['bound_ms']:8.1f} "
        f"{(row['planned_ms'] / row['bound_ms'] - 1) * 100:5.1f}% {row['compute_ms']:8.1f} "
        f"{row['peak_bytes'] / GIGABYTE:8.2f} {row['torch_peak_bytes'] / GIGABYTE:8.2f} "
        f"{row['planning_s']:6.2f}",
        flush=True,
    )
