"""What the collectives of a graph cost: measured with real collectives of its process groups."""

import math
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

from pace.documents.collective_costs import SampledAllReduce
from pace.runtime.inductor.fx_program import FxProgram, GroupCall, process_group
from pace.runtime.inductor.node_times import synchronize

REPEATS = 5
MOST_SIZES = 4
LARGEST_BYTES = 256 << 20

Starter = Callable[[], torch.Tensor]


def measure_collectives(program: FxProgram, device: torch.device) -> dict[GroupCall, SampledAllReduce]:
    """Time collectives of each kind and group in a graph; all ranks must call this with equal graphs.

    Sizes are from the smallest collective of the graph to the sum of all, at most 256 MiB.
    """
    sizes: dict[GroupCall, list[int]] = {}
    for node in program.untimed.nodes:
        if node.collective is not None:
            sizes.setdefault(program.calls[node.collective.communicator], []).append(
                node.collective.input_bytes
            )
    found = {}
    for call, each in sizes.items():
        group = process_group(program.groups[call.group].name)
        least, most = min(each), min(sum(each), max(max(each), LARGEST_BYTES))
        ratio = (most / least) ** (1 / max(1, MOST_SIZES - 1))
        tried = sorted({math.ceil(least * ratio**power) for power in range(MOST_SIZES)})
        found[call] = SampledAllReduce(
            samples=tuple((float(size), _seconds(call, size, group, device)) for size in tried)
        )
    return found


def _seconds(call: GroupCall, size: int, group: dist.ProcessGroup, device: torch.device) -> float:
    start = _starter(call, size, group, device)
    times = []
    for _ in range(1 + REPEATS):
        dist.barrier(group)
        synchronize(device)
        begin = time.perf_counter()
        torch.ops._c10d_functional.wait_tensor(start())
        synchronize(device)
        times.append(time.perf_counter() - begin)
    return median(times[1:])


def _starter(call: GroupCall, size: int, group: dist.ProcessGroup, device: torch.device) -> Starter:
    """Return what starts a collective as compiled code does, memory for its output included."""
    ranks, name = group.size(), group.group_name
    share = max(1, math.ceil(size / 4 / ranks))
    source = torch.ones(ranks * share, device=device)
    ops = torch.ops._c10d_functional
    match call.op:
        case "all-gather":
            return lambda: ops.all_gather_into_tensor(source, ranks, name)
        case "reduce-scatter":
            return lambda: ops.reduce_scatter_tensor(source, "sum", ranks, name)
        case "all-reduce":
            return lambda: ops.all_reduce(source, "sum", name)
        case "all-to-all":
            parts = [share] * ranks
            return lambda: ops.all_to_all_single(source, parts, parts, name)
