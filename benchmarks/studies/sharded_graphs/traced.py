"""A traced graph as a node list, with the durations of an H100, before and after torch's overlap pass.

Graphs are those of the overlap simulator in meta-pytorch/autoparallel, traced under fake tensors on the CPU.
One is a file ``repro_NAME.py`` that defines a module, its inputs and its process groups. Its text is changed
before it runs: devices become the CPU, kernels of Triton become copies, histograms are of floats, as the CPU
has no others, and no environment is set.
"""

import gzip
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.utils._runtime_estimation as roofline
from torch import fx
from torch._inductor.fx_passes import memory_estimator
from torch._inductor.fx_passes.overlap_scheduling import (
    estimate_collective_time,
    estimate_roofline_runtime_ms,
    schedule_overlap_bucketing,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.distributed_c10d import GroupName
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv, optimization_hint
from torch.testing._internal.distributed.fake_pg import FakeStore

from pace.documents.collective_costs import SampledAllReduce
from pace.documents.graph.nodes import CollectiveOp
from pace.formats.node_list import COLLECTIVES, is_view, read_node_list, read_times
from pace.planning.graph.arrays import program_of
from pace.runtime.inductor.fx_program import group_name
from pace.solver.cost_curve import CostCurve
from pace.solver.graph.list_schedule import UNLIMITED, ListScheduler

_CHANGES = (
    (re.compile(r"^os\.environ\[.*$", re.M), ""),
    (re.compile(r"^import triton.*$", re.M), ""),
    (re.compile(r"\(type='cuda'(, index=\d+)?\)"), "(type='cpu')"),
    (re.compile(r"torch\.ops\.higher_order\.triton_kernel_wrapper_functional\("), "_copied("),
    (re.compile(r"torch\.ops\.aten\.histc\.default\("), "_counted("),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repro:
    """A graph that can be traced.

    Attributes
    ----------
    group_sizes
        Ranks of each process group.
    table
        The table of collective times beside the file.
    table_group
        Which group of the table each process group is.
    """

    module: torch.nn.Module
    inputs: Any
    group_sizes: Mapping[str, int]
    table: Path
    table_group: Mapping[str, str]

    def trace(self) -> fx.GraphModule:
        """Return the graph; process groups must exist."""
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()):
            reader = _Inputs()
            self.inputs(reader)
            return make_fx(self.module, tracing_mode="fake")(*reader.args)


def read_repro(path: Path) -> Repro:
    """Run a graph's file."""
    import torch._higher_order_ops.triton_kernel_wrap
    import torch._inductor.inductor_prims  # noqa: F401 - defines ops

    text = path.read_text(encoding="utf-8")
    for pattern, replacement in _CHANGES:
        text = pattern.sub(replacement, text)
    space: dict[str, Any] = {
        "__name__": path.stem,
        "_copied": _copied,
        "_counted": _counted,
        "triton": SimpleNamespace(jit=lambda function: function),
        "tl": SimpleNamespace(constexpr=None),
    }
    exec(compile(text, str(path), "exec"), space)
    groups = {name: info["size"] for name, info in space["get_pg_config"]().items()}
    mapping = space.get("get_colls_group_mapping", lambda: {name: name for name in groups})
    return Repro(
        module=space["Repro"](),
        inputs=space["load_args"],
        group_sizes=groups,
        table=path.with_name(space["get_colls_estimations_file"]()),
        table_group=mapping(),
    )


@contextmanager
def fake_groups(sizes: Mapping[str, int]) -> Iterator[None]:
    """Be rank 0 of process groups with these names, of which no other rank exists."""
    world = max(sizes.values())
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    whole = dist.group.WORLD
    groups: dict[str, Any] = {
        name: whole if size == world else dist.new_group(list(range(size))) for name, size in sizes.items()
    }
    torch._C._distributed_c10d._unregister_all_process_groups()
    for name, group in groups.items():
        torch._C._distributed_c10d._register_process_group(GroupName(name), group)
    try:
        yield
    finally:
        dist.destroy_process_group()


class _Inputs:
    """Stands for the reader that gives a graph its inputs: it makes tensors without content."""

    def __init__(self) -> None:
        self.args: list[Any] = []

    def storage(self, *_args: Any, **_kwargs: Any) -> None:
        """Ignore what a tensor is stored in."""

    def tensor(self, _storage: None, shape: Any, stride: Any = None, **options: Any) -> None:
        """Add a tensor."""
        dtype = options.get("dtype") or torch.float32
        self.args.append(
            torch.empty(shape, dtype=dtype)
            if stride is None
            else torch.empty_strided(shape, stride, dtype=dtype)
        )

    def symint(self, value: int) -> None:
        """Add a whole number."""
        self.args.append(value)


def _copied(*, kwargs: Mapping[str, Any], tensors_to_clone: list[str], **_others: Any) -> dict[str, Any]:
    """Stand for a kernel of Triton: return copies of what it writes."""
    return {name: kwargs[name].clone() for name in tensors_to_clone}


def _counted(values: torch.Tensor, *limits: Any) -> torch.Tensor:
    counts: torch.Tensor = torch.ops.aten.histc.default(values.float(), *limits)
    return counts.to(values.dtype)


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
