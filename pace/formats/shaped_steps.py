"""Profiles from PyTorch execution traces alone: recorded structure and shapes, computed durations."""

import bisect
import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from pace.allreduce import AllReduce
from pace.errors import FormatError, InvalidOptions
from pace.formats.counted_ops import CountedWork, product_of, work_with_calls
from pace.formats.execution_trace import ExecutionTrace, TracedOp, read_execution_trace
from pace.formats.kineto_steps import ACCUMULATE, BACKWARD, COMMUNICATION
from pace.formats.reading import warn
from pace.formats.training_step import StepGradient, StepOp, TrainingStep, profile_of_step
from pace.models.window import MEMORY_GBYTES_PER_TFLOP
from pace.profile import Profile

_ANNOTATION_SCOPE = 7
_ROOT = re.compile(r"\[pytorch\|profiler\|execution_trace\|")
_MAX_DEPTH = 500


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
    if memory_gbytes_per_s is None:
        memory_gbytes_per_s = device_tflops * MEMORY_GBYTES_PER_TFLOP
    for option, value in (("device_tflops", device_tflops), ("memory_gbytes_per_s", memory_gbytes_per_s)):
        if not 0 < value < float("inf"):
            raise InvalidOptions(f"{option} is {value}: expected a positive number")
    trace = read_execution_trace(path, keep_ops=True)
    step = _last_step(trace, device_tflops, memory_gbytes_per_s)
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
            "device_tflops": device_tflops,
            "memory_gbytes_per_s": memory_gbytes_per_s,
        },
    )


class _Tree:
    """The nodes by parent, and the work of whole subtrees."""

    def __init__(self, trace: ExecutionTrace) -> None:
        self.path = trace.path
        self.ops = sorted(trace.ops, key=lambda op: op.id)
        self.by_id = {op.id: op for op in self.ops}
        if len(self.by_id) < len(self.ops):
            raise FormatError(trace.path, "two nodes have the same id")
        self.children: defaultdict[int, list[TracedOp]] = defaultdict(list)
        for op in self.ops:
            if op.parent != op.id:
                self.children[op.parent].append(op)

    def is_annotation(self, op: TracedOp | None) -> bool:
        return op is None or op.scope == _ANNOTATION_SCOPE or _ROOT.match(op.name) is not None

    def outermost(self) -> list[TracedOp]:
        """Return the ops that no other op called; a backward op never counts as called."""
        return [
            op
            for op in self.ops
            if not self.is_annotation(op)
            and (op.name.startswith(BACKWARD) or self.is_annotation(self.by_id.get(op.parent)))
        ]

    def below(self, op: TracedOp) -> list[TracedOp]:
        """Return what an op called, but for backward ops that a trace nested by mistake."""
        return [child for child in self.children[op.id] if not child.name.startswith(BACKWARD)]

    def work(self, op: TracedOp, depth: int = 0) -> CountedWork:
        if depth > _MAX_DEPTH:
            raise FormatError(self.path, f"nodes call one another in a cycle or too deep at id {op.id}")
        if COMMUNICATION.match(op.name):
            return CountedWork()
        product = product_of(op)
        if product is not None:
            return product
        called = CountedWork()
        for child in self.below(op):
            called += self.work(child, depth + 1)
        return work_with_calls(op, called)

    def find(self, op: TracedOp, name: str, depth: int = 0) -> TracedOp | None:
        """Return the first node of a name in a subtree."""
        if op.name == name or depth > _MAX_DEPTH:
            return op if op.name == name else None
        found = (self.find(child, name, depth + 1) for child in self.below(op))
        return next((node for node in found if node is not None), None)

    def sequences(self, op: TracedOp, depth: int = 0) -> list[int]:
        """Return the sequence numbers of an op and of what it called."""
        own = [] if op.sequence is None else [op.sequence]
        if depth > _MAX_DEPTH:
            return own
        return own + [number for child in self.below(op) for number in self.sequences(child, depth + 1)]


def _last_step(trace: ExecutionTrace, tflops: float, memory_gbytes_per_s: float) -> TrainingStep:
    tree = _Tree(trace)
    outermost = tree.outermost()
    ids = [op.id for op in outermost]
    starts = [op.id for op in tree.ops if op.name.startswith("ProfilerStep#")] or [0]
    edges = [*starts, ids[-1] + 1 if ids else 0]
    for start, end in reversed(list(pairwise(edges))):
        inside = outermost[bisect.bisect_left(ids, start) : bisect.bisect_left(ids, end)]
        first = next((place for place, op in enumerate(inside) if op.name.startswith(BACKWARD)), None)
        if first:
            return _step(tree, inside, first, tflops, memory_gbytes_per_s)
    raise FormatError(trace.path, "no step with a forward and a backward pass was found")


def _step(
    tree: _Tree, ops: list[TracedOp], first: int, tflops: float, memory_gbytes_per_s: float
) -> TrainingStep:
    def duration(op: TracedOp) -> float:
        return tree.work(op).duration_s(tflops=tflops, memory_gbytes_per_s=memory_gbytes_per_s)

    forward: list[StepOp] = []
    consumer: dict[int, int] = {}
    for op in _compute(ops[:first]):
        for number in tree.sequences(op):
            consumer[number] = len(forward)
        forward.append(StepOp(name=f"{len(forward):03d}.{_short(op)}", duration_s=duration(op)))
    backward: list[StepOp] = []
    producers: list[TracedOp] = []
    gradients: list[tuple[TracedOp, int]] = []
    update_s = 0.0
    for op in ops[first:]:
        if op.name == BACKWARD + ACCUMULATE:
            node = tree.find(op, ACCUMULATE)
            if node is None or not node.inputs or not backward:
                raise FormatError(
                    tree.path, f"the gradient accumulated at id {op.id} has no shape or no producer"
                )
            gradients.append((node, len(backward) - 1))
        elif op.name.startswith(BACKWARD):
            backward.append(StepOp(name=f"{len(backward):03d}.{_short(op)}", duration_s=duration(op)))
            producers.append(op)
        elif not COMMUNICATION.match(op.name):
            update_s += duration(op)
    unjoined = 0
    joined = []
    for node, producer in gradients:
        places = [consumer[n] for n in tree.sequences(producers[producer]) if n in consumer]
        unjoined += not places
        joined.append(
            StepGradient(
                size_bytes=node.inputs[0].size_bytes,
                dtype=node.inputs[0].dtype,
                producer=producer,
                consumer=places[0] if places else 0,
            )
        )
    if unjoined:
        warn(
            tree.path,
            f"{unjoined} gradients have no forward op: they are taken to be needed by the first one",
        )
    return TrainingStep(
        forward=tuple(forward), backward=tuple(backward), gradients=tuple(joined), update_s=update_s
    )


def _compute(ops: list[TracedOp]) -> list[TracedOp]:
    """Leave out collectives and the copies that follow the broadcast of buffers."""
    kept = []
    after_unflatten = False
    for op in ops:
        copies_buffers = after_unflatten and op.name == "aten::copy_"
        after_unflatten = op.name == "aten::unflatten_dense_tensors" or copies_buffers
        if not COMMUNICATION.match(op.name) and not copies_buffers:
            kept.append(op)
    return kept


def _short(op: TracedOp) -> str:
    return op.name.removeprefix(BACKWARD).removeprefix("aten::")
