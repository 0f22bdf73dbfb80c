"""Profiles from PyTorch execution traces alone: recorded structure and shapes, computed durations.

The work of operators is counted from the shapes of their tensors. Products of matrices are known by name;
every other operator is taken to read its inputs and write its outputs once, unless those that it calls move
more, and views to do nothing of their own. The rules are those by which ``pace.models`` counts layers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pace.device_rates import DeviceRates
from pace.documents.collective_costs import AllReduce
from pace.documents.profile import ELEMENT_BYTES, Profile
from pace.errors import FormatError
from pace.formats.execution_trace import TracedOp, read_execution_trace
from pace.formats.kineto_records import COMMUNICATION
from pace.formats.op_tree import MAX_DEPTH, OpTree, last_step
from pace.formats.training_step import profile_of_step

Shape = tuple[int, ...]

# They change how elements are looked at, or reserve memory without touching it.
_FREE = frozenset(
    (
        "_local_scalar_dense",
        "_reshape_alias",
        "_unsafe_view",
        "alias",
        "as_strided",
        "chunk",
        "contiguous",
        "detach",
        "empty",
        "empty_like",
        "empty_strided",
        "expand",
        "flatten",
        "is_nonzero",
        "item",
        "lift_fresh",
        "movedim",
        "narrow",
        "new_empty",
        "new_empty_strided",
        "numpy_T",
        "permute",
        "reshape",
        "resize_",
        "resolve_conj",
        "resolve_neg",
        "result_type",
        "select",
        "set_",
        "size",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "stride",
        "t",
        "to",
        "transpose",
        "unbind",
        "unflatten",
        "unsqueeze",
        "view",
        "view_as",
    )
)

_ATTENTION = ("_scaled_dot_product", "_flash_attention", "_efficient_attention")


@dataclass(frozen=True, slots=True)
class CountedWork:
    """Operations of matrix products, and bytes read and written."""

    flops: float = 0.0
    moved_bytes: float = 0.0

    def __add__(self, other: "CountedWork") -> "CountedWork":
        return CountedWork(self.flops + other.flops, self.moved_bytes + other.moved_bytes)


def product_of(op: TracedOp) -> CountedWork | None:
    """Return the work of a product of matrices, or None for any other operator."""
    name = op.name.removeprefix("aten::")
    product = _PRODUCTS.get(name)
    if product is None and name.startswith(_ATTENTION):
        product = _attention
    flops = None if product is None else product(op)
    return None if flops is None else CountedWork(flops, _touched(op))


def work_with_calls(op: TracedOp, called: CountedWork) -> CountedWork:
    """Return the work of an operator that is no product and whose calls amount to `called`."""
    name = op.name.removeprefix("aten::")
    if name == op.name or name in _FREE:
        return called
    return CountedWork(called.flops, max(called.moved_bytes, _touched(op)))


def _touched(op: TracedOp) -> float:
    return float(sum(tensor.size_bytes for tensor in (*op.inputs, *op.outputs)))


def _matrices(op: TracedOp) -> tuple[Shape, Shape] | None:
    """Return the last two inputs of two dimensions or more, which are what is multiplied."""
    matrices = [shape for shape in op.shapes if len(shape) >= 2]
    return (matrices[-2], matrices[-1]) if len(matrices) >= 2 else None


def _matmul(op: TracedOp) -> float | None:
    pair = _matrices(op)
    if pair is None or pair[0][-1] != pair[1][-2]:
        return None
    return 2.0 * math.prod(pair[0]) * pair[1][-1]


def _convolution(op: TracedOp) -> float | None:
    if len(op.shapes) < 2 or not op.outputs or not op.shapes[1]:
        return None
    return _products_per_output(op.shapes[1]) * _elements(op, 0)


def _convolution_backward(op: TracedOp) -> float | None:
    # Inputs: gradient of the output, input, weight. Each gradient asked for costs as much as forward.
    if len(op.shapes) < 3 or not op.shapes[2]:
        return None
    asked = {op.inputs[1].size_bytes, op.inputs[2].size_bytes}
    gradients = sum(tensor.size_bytes in asked for tensor in op.outputs)
    return min(gradients, 2) * _products_per_output(op.shapes[2]) * math.prod(op.shapes[0])


def _products_per_output(weight: Shape) -> float:
    return 2.0 * math.prod(weight[1:])


def _elements(op: TracedOp, output: int) -> float:
    tensor = op.outputs[output]
    return tensor.size_bytes / ELEMENT_BYTES[tensor.dtype]


def _attention(op: TracedOp) -> float | None:
    # Query (..., l, d) and key (..., m, d): scores and their product with the values, 2 l m d each;
    # backward computes five such products.
    heads = [shape for shape in op.shapes if len(shape) == 4]
    backward = "backward" in op.name
    if len(heads) < 2 + backward:
        return None
    query, key = heads[backward], heads[backward + 1]
    return (5 if backward else 2) * 2.0 * math.prod(query) * key[-2]


_PRODUCTS: dict[str, Callable[[TracedOp], float | None]] = {
    "mm": _matmul,
    "addmm": _matmul,
    "bmm": _matmul,
    "baddbmm": _matmul,
    "convolution": _convolution,
    "convolution_overrideable": _convolution,
    "convolution_backward": _convolution_backward,
    "convolution_backward_overrideable": _convolution_backward,
}


def read_execution_trace_profile(
    path: str | Path,
    *,
    device_tflops: float,
    workers: int,
    allreduce: AllReduce,
    memory_gbytes_per_s: float | None = None,
    name: str | None = None,
) -> Profile:
    """Make a profile from an execution trace; durations are counted work at the stated rates.

    Parameters
    ----------
    device_tflops, memory_gbytes_per_s
        What the device sustains in matrix products and in memory traffic; by default 40 GB/s for
        every TFLOPS, as in ``pace.models.build``.

    Raises
    ------
    FormatError
        If the trace cannot be read or has no training step.
    """
    rates = DeviceRates.of(device_tflops, memory_gbytes_per_s)
    tree = OpTree(path, read_execution_trace(path, keep_ops=True).ops)

    def duration(op: TracedOp) -> float:
        work = _work(tree, op)
        return rates.duration_s(work.flops, work.moved_bytes)

    step = last_step(tree, duration)
    return profile_of_step(
        path,
        step,
        name=name,
        workers=workers,
        allreduce=allreduce,
        metadata={
            "origin": "computed",
            "tool": "PyTorch execution trace",
            "note": "Structure and shapes were recorded; durations are counted work, not measured.",
            "device_tflops": rates.tflops,
            "memory_gbytes_per_s": rates.memory_gbytes_per_s,
        },
    )


def _work(tree: OpTree, op: TracedOp, depth: int = 0) -> CountedWork:
    if depth > MAX_DEPTH:
        raise FormatError(tree.path, f"nodes call one another in a cycle or too deep at id {op.id}")
    if COMMUNICATION.match(op.name):
        return CountedWork()
    product = product_of(op)
    if product is not None:
        return product
    called = CountedWork()
    for child in tree.below(op):
        called += _work(tree, child, depth + 1)
    return work_with_calls(op, called)
