"""What the collectives of a graph cost: measured with real collectives of its process groups."""

import math
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

from pace.documents.collective_costs import SampledAllReduce
from pace.runtime.inductor.fx_program import FxProgram, GroupCall

REPEATS = 3
MOST_SIZES = 4
LARGEST_BYTES = 256 << 20


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
        group = dist.distributed_c10d._resolve_process_group(program.groups[call.group].name)
        least, most = min(each), min(sum(each), max(max(each), LARGEST_BYTES))
        ratio = (most / least) ** (1 / max(1, MOST_SIZES - 1))
        tried = sorted({math.ceil(least * ratio**power) for power in range(MOST_SIZES)})
        found[call] = SampledAllReduce(
            samples=tuple((float(size), _seconds(call, size, group, device)) for size in tried)
        )
    return found


def _seconds(call: GroupCall, size: int, group: dist.ProcessGroup, device: torch.device) -> float:
    start_one = _starter(call, size, group, device)
    times = []
    for _ in range(1 + REPEATS):
        dist.barrier(group)
        if device.type != "cpu":
            torch.get_device_module(device).synchronize()
        start = time.perf_counter()
        start_one()
        if device.type != "cpu":
            torch.get_device_module(device).synchronize()
        times.append(time.perf_counter() - start)
    return median(times[1:])


def _starter(
    call: GroupCall, size: int, group: dist.ProcessGroup, device: torch.device
) -> Callable[[], object]:
    ranks = group.size()
    elements = max(1, math.ceil(size / 4))
    if call.op in ("reduce-scatter", "all-to-all"):
        elements = ranks * math.ceil(elements / ranks)
    source = torch.ones(elements, device=device)
    match call.op:
        case "all-gather":
            whole = torch.empty(elements * ranks, device=device)
            return lambda: dist.all_gather_into_tensor(whole, source, group=group)
        case "reduce-scatter":
            part = torch.empty(elements // ranks, device=device)
            return lambda: dist.reduce_scatter_tensor(part, source, group=group)
        case "all-reduce":
            return lambda: dist.all_reduce(source, group=group)
        case "all-to-all":
            target = torch.empty_like(source)
            return lambda: dist.all_to_all_single(target, source, group=group)
