"""A traced graph as a node list, with the durations of an H100, before and after torch's overlap pass."""

import gzip
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.utils._runtime_estimation as roofline
from torch import fx
from torch._inductor.fx_passes import memory_estimator
from torch._inductor.fx_passes.overlap_scheduling import (
    estimate_collective_time,
    estimate_roofline_runtime_ms,
    schedule_overlap_bucketing,
)
from torch.fx.experimental.symbolic_shapes import optimization_hint

from benchmarks.studies.sharded_graphs.repros import Repro, fake_groups, read_repro
from pace.documents.collective_costs import SampledAllReduce
from pace.documents.graph.nodes import CollectiveOp
from pace.formats.node_list import COLLECTIVES, is_view, read_node_list, read_times
from pace.planning.graph.arrays import program_of
from pace.runtime.inductor.fx_program import group_name
from pace.solver.cost_curve import CostCurve
from pace.solver.graph.list_schedule import UNLIMITED, ListScheduler

MEMORY_GBYTES_PER_S = 3350.0
PEAK_TFLOPS = {torch.bfloat16: 989.0, torch.float16: 989.0, torch.float32: 67.0, torch.float64: 67.0}
UNKNOWN_SIZE = 8192
"""What torch takes for a size that is only known while a graph runs."""
_FUNCTIONAL = "_c10d_functional"
"""The namespace of functional collectives."""

Curves = Mapping[tuple[str, CollectiveOp], CostCurve]


def run_pass(path: Path, name: str, graphs: Path) -> dict[str, Any]:
    """Write a graph's node list and table, run torch's pass, and return its times (ms) and memory."""
    repro = read_repro(path)
    table = graphs / f"{name}.table"
    _write_table(repro, table)
    times = read_times(table)
    curves: Curves = {
        (group, op): SampledAllReduce(samples=((1.0, samples[0][1]), *samples)).cost(ranks)
        for (group, op), (ranks, samples) in times.rows.items()
    }
    with fake_groups(repro.group_sizes), h100():
        module = repro.trace()
        durations = {node: _milliseconds(node, curves, None) for node in module.graph.nodes}
        before = node_rows(module.graph, durations)
        _write(graphs / f"{name}.json.gz", before)

        def estimated(node: fx.Node, size: int | None) -> float | None:
            known = durations.get(node) if size is None else None
            return _milliseconds(node, curves, size) if known is None else known

        began = time.perf_counter()
        module = schedule_overlap_bucketing(
            module,
            collective_bucketing=True,
            custom_runtime_estimation=estimated,
            compute_estimator="analytical",
        )
        pass_s = time.perf_counter() - began
        after = {node: _milliseconds(node, curves, None) for node in module.graph.nodes}
        rows = node_rows(module.graph, after)
        peak_bytes = _peak_bytes(module.graph)
    old = {row["name"] for row in before}
    for row in rows:
        row["new view"] = row["name"] not in old and (is_view(row["target"]) or "empty" in row["target"])
    free = [row | {"dur": 0.0} if row["new view"] else row for row in rows]
    return {
        "nodes": len(before),
        "as_traced_ms": _timed(graphs, before, table),
        "torch_ms": _timed(graphs, rows, table),
        "views_free_ms": _timed(graphs, free, table),
        "torch_peak_gb": peak_bytes / 1e9,
        "calls": sum(row["kind"] in COLLECTIVES for row in rows),
        "pass_s": pass_s,
    }


@contextmanager
def h100() -> Iterator[None]:
    """Let torch's roofline be that of an H100."""
    rates: dict[str, Any] = {
        "get_device_tflops": lambda dtype: PEAK_TFLOPS.get(dtype, 989.0),
        "get_gpu_dram_gbps": lambda: MEMORY_GBYTES_PER_S,
    }
    kept = {name: vars(roofline)[name] for name in rates}
    vars(roofline).update(rates)
    try:
        yield
    finally:
        vars(roofline).update(kept)


def node_rows(graph: fx.Graph, durations: Mapping[fx.Node, float]) -> list[dict[str, Any]]:
    """Return a graph as a node list; `durations` are in ms."""
    number = {node: at for at, node in enumerate(graph.nodes)}
    rows = []
    for node, at in number.items():
        kind = _kind(node)
        row = {
            "i": at,
            "op": node.op,
            "name": node.name,
            "target": str(node.target),
            "deps": [number[each] for each in _read_by(node)],
            "bytes": _bytes(node.meta.get("val")),
            "kind": kind,
            "dur": durations[node],
        }
        if kind in COLLECTIVES:
            value = node.all_input_nodes[0].meta["val"]
            row |= {"group": str(group_name(node)), "in_bytes": _bytes(value), "dtype": str(value.dtype)}
        rows.append(row)
    return rows


def _read_by(node: fx.Node) -> list[fx.Node]:
    """Return what a node reads. The size of a collective's output is known as soon as its input is."""
    found: list[fx.Node] = []
    for each in node.all_input_nodes:
        of_size = str(node.target).startswith("aten.sym_size") and _kind(each) in COLLECTIVES
        found += each.all_input_nodes if of_size else [each]
    return list(dict.fromkeys(found))


def _kind(node: fx.Node) -> str:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != _FUNCTIONAL:
        return "op"
    name = target._opname.removesuffix("_out")
    return "wait" if name == "wait_tensor" else name


def _milliseconds(node: fx.Node, curves: Curves, size: int | None) -> float:
    """Return the time of a node by its table or by torch; a collective may have another size."""
    kind = _kind(node)
    if node.op != "call_function" or kind == "wait":
        return 0.0
    if kind not in COLLECTIVES:
        return float(estimate_roofline_runtime_ms(node))
    curve = curves.get((str(group_name(node)), COLLECTIVES[kind]))
    if curve is None:
        return float(estimate_collective_time(node, size)) if COLLECTIVES[kind] == "all-to-all" else 0.0
    own = _bytes(node.all_input_nodes[0].meta["val"]) if size is None else size
    return float(curve(float(max(1, own)))) * 1e3


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        count = 1
        for size in value.shape:
            count *= optimization_hint(size, fallback=UNKNOWN_SIZE)
        return count * value.element_size()
    if isinstance(value, list | tuple):
        return sum(_bytes(each) for each in value)
    return 0


def _peak_bytes(graph: fx.Graph) -> int:
    """Return the peak memory by torch's rule, which by itself does not count the memory of a CPU."""
    kept = memory_estimator.device_filter
    memory_estimator.device_filter = lambda device: True  # noqa: ARG005 - its argument has a name
    try:
        return max(
            memory_estimator.build_memory_profile(graph, is_releasable=lambda node: node.op != "placeholder")
        )
    finally:
        memory_estimator.device_filter = kept


def _write_table(repro: Repro, path: Path) -> None:
    """Write the rows of a graph's table under the names of its own groups."""
    header, rule, *lines = repro.table.read_text(encoding="utf-8").splitlines()
    found = [header, rule]
    for group, of_table in repro.table_group.items():
        for line in lines:
            cells = line.split()
            if cells and cells[0] == of_table:
                found.append(" ".join([group, str(repro.group_sizes[group]), *cells[2:]]))
    path.write_text("\n".join(found) + "\n", encoding="utf-8")


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump(rows, file, separators=(",", ":"))


def _timed(graphs: Path, rows: list[dict[str, Any]], table: Path) -> float:
    """Return the milliseconds of a node list in its own order."""
    path = graphs / "torch-pass" / f"{table.stem}.json.gz"
    path.parent.mkdir(exist_ok=True)
    _write(path, rows)
    graph = read_node_list(path, times=[read_times(table)], copy_bytes_per_s=MEMORY_GBYTES_PER_S * 1e9)
    return ListScheduler(program_of(graph), UNLIMITED).as_it_is().end_s * 1e3
