"""How long each node of an FX graph takes: measured on this device, or computed from the device's rates.

What torch's own kernels compute, such as matrix products, convolutions and attention, is measured op by op,
with random inputs. Inductor fuses other ops, so they are charged the bytes that enter and leave a fused
region. Collectives are timed with the process groups of the graph.
"""

import math
import operator
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import fx
from torch._inductor.fx_passes.overlap_scheduling import is_compute_node
from torch._inductor.lowering import fallbacks, lowerings
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from pace.device_rates import DeviceRates
from pace.documents.collective_costs import SampledAllReduce
from pace.documents.graph.nodes import CollectiveOp
from pace.runtime.inductor.fx_program import (
    FxProgram,
    GroupCall,
    bytes_of,
    is_collective,
    is_wait,
    now,
    origin,
    process_group,
    view_source,
    written_by,
)
from pace.runtime.transports.device import Clock, CudaClock, HostClock

NODE_REPEATS = 3
# Ops that Inductor leaves to torch. Torch adds to its own set whatever it left to torch once.
_LEFT_TO_TORCH = frozenset(op for op in fallbacks if hasattr(lowerings.get(op), "_is_fallback_handler"))
_TORCH_NAMESPACES = frozenset({"aten", "prims", "mkldnn", "onednn", "quantized", "_quantized"})
_COPIED_BYTES = 64 << 20


def measured_memory_rate(device: torch.device) -> float:
    """Return the bytes that a copy on a device reads and writes in a second."""
    source = torch.ones(_COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)
    return 2 * _COPIED_BYTES / _call_seconds(lambda: target.copy_(source), device)


class NodeTimes:
    """Durations of the nodes of graphs on one device; what was measured once is not measured again.

    Parameters
    ----------
    rates
        The device's rates; None to measure.
    """

    def __init__(self, device: torch.device, rates: DeviceRates | None) -> None:
        self._device = device
        self._rates = rates
        self._measured: dict[str, float] = {}
        self._flops_per_s = 0.0
        self.memory_bytes_per_s = (
            measured_memory_rate(device) if rates is None else rates.memory_gbytes_per_s * 1e9
        )

    def duration_s(self, node: fx.Node, *, fused: bool = True) -> float:
        """Return the seconds that a node takes the device; 0 for collectives, waits and views.

        Parameters
        ----------
        fused
            Whether Inductor fuses what it can. Otherwise, each node runs by itself.
        """
        if is_collective(node) or is_wait(node) or (view_source(node) is not None and not _writes(node)):
            return 0.0
        if fused and _is_fused(node):
            return _moved_bytes(node) / self.memory_bytes_per_s
        arguments = pytree.tree_map(_value, (node.args, node.kwargs))
        whole = bytes_of(node.meta.get("val")) + sum(bytes_of(each) for each in pytree.tree_leaves(arguments))
        flops = _flops(node, arguments)
        if self._rates is not None:
            return self._rates.duration_s(flops, whole)
        key = f"{node.target} {pytree.tree_map(_form, arguments)}"
        if key not in self._measured:
            self._measured[key] = self._found_s(node, arguments, flops, whole)
        return self._measured[key]

    def _found_s(self, node: fx.Node, arguments: Any, flops: float, whole: int) -> float:
        """Measure a node; compute its time from the rates measured so far where it cannot run by itself."""
        if _may_run(node):
            try:
                seconds = self._measure(node, arguments)
                self._flops_per_s = max(self._flops_per_s, flops / seconds)
                return seconds
            except Exception:
                pass  # Random inputs do not suit every op, and memory may not suffice.
        compute_s = flops / self._flops_per_s if self._flops_per_s else 0.0
        return max(compute_s, whole / self.memory_bytes_per_s)

    def _measure(self, node: fx.Node, arguments: Any) -> float:
        assert callable(node.target)
        target = node.target
        # The job draws the same random numbers afterwards as it would without this.
        with torch.random.fork_rng([] if self._device.type == "cpu" else [self._device]):
            args, kwargs = pytree.tree_map(self._real, arguments)
            return _call_seconds(lambda: target(*args, **kwargs), self._device)

    def _real(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return now(value)
        sizes, strides = [now(size) for size in value.shape], [now(stride) for stride in value.stride()]
        found = torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
        return found.uniform_() if value.dtype.is_floating_point else found.zero_()


def is_kernel_of_torch(node: fx.Node) -> bool:
    """Return whether torch's own kernel computes a node, such as a matrix product or attention.

    Inductor does not fuse such a node with others.
    """
    return is_compute_node(node) or (node.op == "call_function" and node.target in _LEFT_TO_TORCH)


def synchronize(device: torch.device) -> None:
    """Wait until a device has done what it was given."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def _call_seconds(call: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(1 + NODE_REPEATS):
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return median(times[1:])


def _value(argument: Any) -> Any:
    return argument.meta.get("val") if isinstance(argument, fx.Node) else argument


def _form(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        shape, strides = [now(size) for size in value.shape], [now(stride) for stride in value.stride()]
        return f"{value.dtype}{shape}{strides}{value.device}"
    return str(now(value))


def _flops(node: fx.Node, arguments: Any) -> float:
    formula = flop_registry.get(getattr(node.target, "overloadpacket", node.target))
    if formula is None:
        return 0.0
    args, kwargs = arguments
    return float(now(formula(*args, **kwargs, out_val=node.meta["val"])))


def _writes(node: fx.Node) -> bool:
    return any(True for _ in written_by(node))


def _is_fused(node: fx.Node) -> bool:
    """Return whether Inductor generates the code of a node, and so may fuse it with its neighbors."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target.__class__.__module__ == "builtins"  # arithmetic of sizes
    return target.namespace in ("aten", "prims") and not is_kernel_of_torch(node)


def _may_run(node: fx.Node) -> bool:
    """Return whether a node may run more often than the job runs it: not the user's code, which may count.

    Whoever registers a formula for the operations of a custom op declares that it only computes.
    """
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in _TORCH_NAMESPACES or is_compute_node(node)
    return not isinstance(target, torch._ops.HigherOrderOperator)


def _moved_bytes(node: fx.Node) -> int:
    """Return the bytes that a fused op reads from, and writes for, nodes outside its fused region."""
    read = sum(bytes_of(each.meta.get("val")) for each in node.all_input_nodes if not _inside(origin(each)))
    is_read = any(not _inside(user) for user in _readers(node)) or not node.users
    return read + (bytes_of(node.meta.get("val")) if is_read else 0)


def _inside(node: fx.Node) -> bool:
    return node.op == "call_function" and _is_fused(node)


def _readers(node: fx.Node) -> list[fx.Node]:
    """Return what reads a node, also through views."""
    found = []
    for user in node.users:
        if user.op == "call_function" and (
            user.target is operator.getitem or (view_source(user) is node and not _writes(user))
        ):
            found += _readers(user)
        else:
            found.append(user)
    return found


PRODUCT_BATCHES = 9
QUEUED = 2
"""Number of collectives in flight while costs are measured. Plans may have one more."""
LEAST_INTERVALS, MOST_INTERVALS = 3, 60
REPEATED_BYTES = 8 << 20
"""A collective is timed in as many intervals as these bytes hold its input, within the limits above."""
ALONE = 2
"""Intervals that are timed without compute first; one may be interrupted."""
BESIDE_SHARE = 0.5
"""Compute beside each later interval, as a share of the shortest interval without compute."""
LIKELY_SLOWDOWN = 4.0
"""Factor by which compute takes longer beside collectives, as long as none has been measured."""
MOST_SIZES = 8
LARGEST_BYTES = 256 << 20
# How many of a graph's largest collectives the largest one measured is as long as, at most.
LARGEST_BUCKET = 4

Starter = Callable[[], torch.Tensor]


class CollectiveTimer:
    """What collectives cost on one device; what was measured once is not measured again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._clock: Clock = CudaClock(device) if device.type == "cuda" else HostClock()
        self._measured: dict[tuple[str, CollectiveOp], SampledAllReduce] = {}
        self._beside_s = self._alone_s = 0.0

    @property
    def compute_slowdown(self) -> float:
        """Factor by which compute took longer beside the collectives measured so far; 1 without any."""
        return max(1.0, self._beside_s / self._alone_s) if self._alone_s else 1.0

    def measure(self, program: FxProgram) -> dict[GroupCall, SampledAllReduce]:
        """Time collectives of each kind and group in a graph; all ranks must call this with equal graphs.

        Sizes are from the smallest collective of the graph to four times the largest one, at most 256 MiB of
        input or output and the sum of all. Each is timed in a stream that never has fewer than two in flight,
        as plans keep queues: over Gloo, one large all-gather fills two thirds of its link, and two fill it.
        The device computes beside them.
        """
        sizes: dict[GroupCall, list[int]] = {}
        for node in program.untimed.nodes:
            if node.collective is not None:
                sizes.setdefault(program.calls[node.collective.communicator], []).append(
                    node.collective.input_bytes
                )
        return {
            call: self._cost(call.op, process_group(program.groups[call.group].name), each)
            for call, each in sizes.items()
        }

    def _cost(self, op: CollectiveOp, group: dist.ProcessGroup, sizes: list[int]) -> SampledAllReduce:
        least, largest = min(sizes), max(sizes)
        fits = LARGEST_BYTES // (group.size() if op == "all-gather" else 1)
        most = min(sum(sizes), max(largest, min(LARGEST_BUCKET * largest, fits)))
        key = group.group_name, op
        known = self._measured.get(key)
        if known is None or not _covers(known, least, most):
            ratio = (most / least) ** (1 / max(1, MOST_SIZES - 1))
            tried = sorted({math.ceil(least * ratio**power) for power in range(MOST_SIZES)})
            known = self._measured[key] = SampledAllReduce(
                samples=tuple((float(size), self._seconds(op, size, group)) for size in tried)
            )
        return known

    def _seconds(self, op: CollectiveOp, size: int, group: dist.ProcessGroup) -> float:
        start = _starter(op, size, group, self._device)
        side = 256 if self._device.type == "cpu" else 4096
        matrix = torch.ones(side, side, device=self._device, dtype=torch.bfloat16 if side > 256 else None)
        dist.barrier(group)
        self._products(matrix, 1)
        batches = [self._products(matrix, NODE_REPEATS) for _ in range(PRODUCT_BATCHES)]
        product_s = median(map(self._computed_s, batches)) / NODE_REPEATS

        def intervals_s(count: int, products: int) -> list[float]:
            dist.barrier(group)
            in_flight = deque(start() for _ in range(QUEUED))
            stamps: list[Any] = []
            computed: list[Sequence[Any]] = []
            # The first collectives may find an idle wire, and the last ones end beside fewer.
            for left in reversed(range(QUEUED * (count + 2))):
                computed.append(self._products(matrix, products))
                torch.ops._c10d_functional.wait_tensor(in_flight.popleft())
                stamps.append(self._clock.now())
                if left >= QUEUED:
                    in_flight.append(start())
            if products:
                self._beside_s += sum(map(self._computed_s, computed))
                self._alone_s += len(computed) * products * product_s
            ends_s = self._clock.seconds(stamps)[QUEUED - 1 : -QUEUED : QUEUED]
            return [end - begin for begin, end in pairwise(ends_s)]

        # If compute took longer than they do, the time would be that of compute.
        slowdown = self.compute_slowdown if self._alone_s else LIKELY_SLOWDOWN
        products = int(BESIDE_SHARE * min(intervals_s(ALONE, 0)) / QUEUED / product_s / slowdown)
        count = min(max(LEAST_INTERVALS, REPEATED_BYTES // size), MOST_INTERVALS)
        return median(intervals_s(count, products)) / QUEUED

    def _computed_s(self, stamps: Sequence[Any]) -> float:
        return self._clock.seconds(stamps)[1]

    def _products(self, matrix: torch.Tensor, count: int) -> tuple[Any, Any]:
        """Give the device matrix products; return stamps of before and after."""
        start = self._clock.now()
        for _ in range(count):
            torch.mm(matrix, matrix)
        return start, self._clock.now()


def _covers(cost: SampledAllReduce, least: int, most: int) -> bool:
    sizes = [size for size, _ in cost.samples]
    return min(sizes) <= least and most <= max(sizes)


def _starter(op: CollectiveOp, size: int, group: dist.ProcessGroup, device: torch.device) -> Starter:
    """Return what starts a collective as compiled code does, memory for its output included."""
    ranks, name = group.size(), group.group_name
    share = max(1, math.ceil(size / 4 / ranks))
    source = torch.ones(ranks * share, device=device)
    ops = torch.ops._c10d_functional
    match op:
        case "all-gather":
            # As of buckets, and of lone all-gathers on CPUs.
            return lambda: ops.all_gather_into_tensor_out(
                source, ranks, name, out=source.new_empty(ranks * len(source))
            )
        case "reduce-scatter":
            return lambda: ops.reduce_scatter_tensor(source, "sum", ranks, name)
        case "all-reduce":
            return lambda: ops.all_reduce(source, "sum", name)
        case "all-to-all":
            parts = [share] * ranks
            return lambda: ops.all_to_all_single(source, parts, parts, name)
