"""Planned graphs of sharded training: time, bound, memory and rivals of a folder of node lists.

Every plan is checked, and every graph is proved to be free of hangs before and after planning. The study ends
with an error otherwise.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.studies.sharded_graphs.torch_memory import torch_peak_bytes
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.options import Options
from pace.documents.order.order_report import StreamRule
from pace.documents.schedule import Schedule
from pace.errors import PaceError
from pace.formats.node_list import read_node_list, read_times
from pace.formats.reading import stream_json
from pace.kinds import check
from pace.kinds.comparison import simulate
from pace.order.check_order import check_order
from pace.order.inputs.plans import program_of_plans
from pace.planning.graph.arrays import program_of
from pace.planning.graph.optimize import optimize_graph
from pace.planning.warm_up import warm_up
from pace.simulation import GRAPH_POLICIES, GraphSimulation
from pace.simulation.graph.run import run_schedule
from pace.solver.graph.list_schedule import UNLIMITED, ListScheduler
from pace.solver.graph.program import Bucket

GIGABYTE = 1e9
RIVALS = tuple(name for name in GRAPH_POLICIES if name not in ("pace", "as-traced"))
FACTORS = tuple(1 + step / 400 for step in range(41))


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
            rows.append(_row(path, graph, options))
            _print(rows[-1], header=len(rows) == 1)
        if options.rivals:
            _print_rivals(rows)
    except PaceError as error:
        print(f"sharded_graphs: {error}", file=sys.stderr)
        return 1
    if options.json is not None:
        options.json.write_text(json.dumps({"graphs": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder",
        type=Path,
        help="folder of node lists (.json, .json.gz) and tables of collective times (.table)",
    )
    parser.add_argument("--json", type=Path, help="file for plans and numbers (JSON; default: none)")
    parser.add_argument(
        "--rivals",
        action="store_true",
        help="simulate the other policies too, and plan within the peak memory of Inductor's pass",
    )
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument(
        "--memory-gb", type=float, help="memory budget of every graph in GB (default: see --memory-factor)"
    )
    budget.add_argument(
        "--memory-factor",
        type=float,
        default=1.06,
        help="memory budget as a multiple of the graph's own peak memory (default: %(default)s)",
    )
    parser.add_argument(
        "--memory-gbytes-per-s",
        type=float,
        default=3350,
        help="rate of the device's memory in GB/s (default: %(default)s, an H100)",
    )
    return parser.parse_args()


def _row(path: Path, graph: CollectiveGraph, options: argparse.Namespace) -> dict[str, Any]:
    """Plan one graph; its plan is told in the numbers of the node list."""
    as_it_is = ListScheduler(program_of(graph), UNLIMITED).as_it_is()
    budget = int(as_it_is.peak_bytes * options.memory_factor)
    if options.memory_gb is not None:
        budget = int(options.memory_gb * GIGABYTE)
    began = time.perf_counter()
    schedule = optimize_graph(graph, Options(memory_bytes=budget))
    planning_s = time.perf_counter() - began
    violations = check(graph, schedule)
    if violations:
        raise PaceError(f"{path}: the checker refuses the plan: {violations[0]}")
    _prove_order(path, graph, schedule)
    copies = 2 * sum(
        call.input_bytes + call.output_bytes
        for group in schedule.groups
        if len(group.tensors) > 1
        for call in (graph.nodes[graph.numbers[name]].collective for name in group.tensors)
        if call is not None
    )
    rows = list(stream_json(path, "item"))
    plan = _plan(rows, graph, schedule.graph_plan.order, run_schedule(graph, schedule).plan.buckets)
    row = {
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
    if options.rivals:
        order = list(range(len(graph.nodes)))
        row["as_traced_torch_peak_bytes"] = torch_peak_bytes(rows, _plan(rows, graph, order, ()))
        row["policies"] = _compared(rows, graph, as_it_is.peak_bytes)
    return row


def _prove_order(path: Path, graph: CollectiveGraph, schedule: Schedule) -> None:
    """Raise an error if the ranks of a graph could wait for one another, as it is or as it is planned."""
    streams: StreamRule
    for when, plans in (("before planning", []), ("after planning", [schedule])):
        program = program_of_plans(plans, [graph])
        for streams in ("side-by-side", "launch-order"):
            report = check_order(program, streams=streams)
            if not report.cannot_hang:
                title = report.findings[0].title
                raise PaceError(f"{path}: it can hang {when} with streams {streams}: {title}")


def _compared(
    rows: list[dict[str, Any]], graph: CollectiveGraph, traced_bytes: int
) -> dict[str, dict[str, Any]]:
    """Return time and memory of the rivals, and of the best plan within the memory of Inductor's pass.

    Both count that memory by torch's rule. Budgets count it by PACE's, so several are tried.
    """
    told: dict[str, dict[str, Any]] = {}
    for name, found in simulate(graph, RIVALS).items():
        assert isinstance(found.run, GraphSimulation)
        order = found.run.plan.order.tolist()
        told[name] = {
            "ms": found.iteration_s * 1e3,
            "peak_bytes": found.run.memory.peak_bytes,
            "torch_peak_bytes": torch_peak_bytes(rows, _plan(rows, graph, order, found.run.plan.buckets)),
            "collectives": found.run.num_calls,
        }
    limit = told["inductor"]["torch_peak_bytes"]
    for factor in FACTORS:
        schedule = optimize_graph(graph, Options(memory_bytes=int(traced_bytes * factor)))
        plan = _plan(rows, graph, schedule.graph_plan.order, run_schedule(graph, schedule).plan.buckets)
        peak = torch_peak_bytes(rows, plan)
        milliseconds = schedule.predicted.iteration_s * 1e3
        if peak <= limit and milliseconds < told.get("pace", {"ms": float("inf")})["ms"]:
            told["pace"] = {
                "ms": milliseconds,
                "peak_bytes": schedule.predicted.peak_bytes,
                "torch_peak_bytes": peak,
                "collectives": len(schedule.transfers),
                "memory_factor": factor,
                "plan": plan,
            }
    return told


def _plan(
    rows: list[dict[str, Any]], graph: CollectiveGraph, order: Sequence[int], buckets: Sequence[Bucket]
) -> list[int | list[int]]:
    """Return the node list's numbers in the order of the plan; a bucket is a list where it is issued."""
    listed = {row["name"]: row["i"] for row in rows}
    numbers = [listed[node.name] for node in graph.nodes]
    bucket_of = {member: bucket for bucket in buckets for member in bucket}
    plan: list[int | list[int]] = []
    issued: set[int] = set()
    for node in order:
        if node in issued:
            continue
        bucket = bucket_of.get(node)
        if bucket is None:
            plan.append(numbers[node])
        else:
            issued.update(bucket)
            plan.append([numbers[member] for member in bucket])
    return plan


def _print_rivals(rows: list[dict[str, Any]]) -> None:
    """Print the times of the rivals in ms, and their peaks by torch's rule in GB."""
    print(f"\n{'ms, and peak GB':28}" + "".join(f" {name:>16}" for name in ("as-traced", *RIVALS, "pace")))
    for row in rows:
        traced = f"{row['as_traced_ms']:8.1f} {row['as_traced_torch_peak_bytes'] / GIGABYTE:7.3f}"
        cells = [traced]
        for name in (*RIVALS, "pace"):
            told = row["policies"].get(name)
            cells.append(
                "" if told is None else f"{told['ms']:8.1f} {told['torch_peak_bytes'] / GIGABYTE:7.3f}"
            )
        print(f"{row['name']:28}" + "".join(f" {cell:>16}" for cell in cells))


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
