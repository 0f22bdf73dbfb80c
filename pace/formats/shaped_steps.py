"""Profiles from PyTorch execution traces alone: recorded structure and shapes, computed durations."""

from pathlib import Path

from pace.device_rates import DeviceRates
from pace.documents.collective_costs import AllReduce
from pace.documents.profile import Profile
from pace.errors import FormatError
from pace.formats.counted_ops import CountedWork, product_of, work_with_calls
from pace.formats.execution_trace import TracedOp, read_execution_trace
from pace.formats.kineto_records import COMMUNICATION
from pace.formats.op_tree import MAX_DEPTH, OpTree, last_step
from pace.formats.training_step import profile_of_step


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
