"""Profiles from Kineto traces (torch.profiler's Chrome traces) of one or several ranks."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pace.documents.collective_costs import AllReduce, SampledAllReduce
from pace.documents.profile import Profile
from pace.errors import FormatError, InvalidOptions
from pace.formats.execution_trace import ExecutionTrace, TracedTensor, read_execution_trace
from pace.formats.kineto_steps import RecordedGradient, RecordedOp, RecordedStep, recorded_steps
from pace.formats.kineto_trace import KinetoTrace, read_kineto_trace
from pace.formats.reading import warn
from pace.formats.recorded_collectives import RecordedCall, cost_samples, recorded_calls
from pace.formats.training_step import (
    StepGradient,
    StepOp,
    TrainingStep,
    gradient_names,
    profile_of_step,
)

Clock = Literal["auto", "device", "host"]


def read_kineto(
    paths: Sequence[str | Path],
    *,
    execution_trace: str | Path | None = None,
    workers: int | None = None,
    allreduce: AllReduce | None = None,
    clock: Clock = "auto",
    name: str | None = None,
) -> Profile:
    """Make a profile from one or several ranks' traces of the same run.

    Parameters
    ----------
    paths
        One trace for each rank, at least one. Op durations are those of the rank whose step is
        longest; the all-reduce cost uses all of them.
    execution_trace
        An execution trace of the same workload, for the sizes of gradients: needed unless the
        Kineto trace was recorded with `record_shapes=True`. Joined by `Record function id` if both
        were recorded together, else by the order in which gradients were accumulated.
    workers, allreduce
        For traces that do not say how many workers took part, or how large the all-reduces were.
    clock
        "device": an op lasts as long as its kernels. "host": until the next op starts on the host.
        "auto": the device's if there are kernels.

    Raises
    ------
    FormatError
        If a trace cannot be read, or something needed is not in it.
    """
    if not paths:
        raise InvalidOptions("no Kineto trace given")
    shapes = None if execution_trace is None else read_execution_trace(execution_trace)
    ranks = [_Rank(read_kineto_trace(path), shapes, clock) for path in paths]
    slowest = max(ranks, key=lambda rank: rank.compute_s)
    trace, step = slowest.trace, slowest.step
    samples = cost_samples([rank.calls for rank in ranks])
    workers = workers or _workers(ranks)
    if workers is None:
        raise FormatError(trace.path, "the trace does not say how many workers took part: give their number")
    if allreduce is None:
        if not samples:
            reason = "no all-reduce of known size was recorded: give the cost of an all-reduce"
            raise FormatError(trace.path, reason)
        allreduce = SampledAllReduce(samples=samples)
    return profile_of_step(
        trace.path,
        step,
        name=name,
        workers=workers,
        allreduce=allreduce,
        metadata=_metadata(slowest, len(ranks), execution_trace is not None, bool(samples)),
    )


class _Rank:
    """One rank's trace worked out: its median step and its all-reduces."""

    def __init__(self, trace: KinetoTrace, shapes: ExecutionTrace | None, clock: Clock) -> None:
        self.trace = trace
        self.steps = _alike(trace, recorded_steps(trace))
        if clock == "auto":
            clock = "device" if any(op.device_s for op in self.steps[0].backward) else "host"
        self.clock: Clock = clock
        self.gradients = _with_shapes(trace, self.steps, shapes)
        self.calls = _with_sizes(self.steps, recorded_calls(trace), self.gradients, shapes)
        self.step = _median_step(self)
        self.compute_s = sum(op.duration_s for op in (*self.step.forward, *self.step.backward))


def _alike(trace: KinetoTrace, steps: list[RecordedStep]) -> list[RecordedStep]:
    counts = Counter(step.signature for step in steps)
    most = max(counts.values())
    # Of equally common forms the last one is the least likely to be warm-up.
    common = next(step.signature for step in reversed(steps) if counts[step.signature] == most)
    if most < len(steps):
        warn(trace.path, f"{len(steps) - most} of {len(steps)} steps ran other operators and were left out")
    return [step for step in steps if step.signature == common]


def _with_shapes(
    trace: KinetoTrace, steps: list[RecordedStep], shapes: ExecutionTrace | None
) -> list[TracedTensor]:
    gradients = steps[-1].gradients
    if shapes is not None:
        return shapes.gradients_like([gradient.record for gradient in gradients])
    found = [_recorded_tensor(gradient) for gradient in gradients]
    missing = sum(tensor is None for tensor in found)
    if missing:
        raise FormatError(
            trace.path,
            f"the sizes of {missing} of {len(gradients)} gradients were not recorded: give the execution "
            "trace of the same workload, or record with record_shapes=True",
        )
    return [tensor for tensor in found if tensor is not None]


def _recorded_tensor(gradient: RecordedGradient) -> TracedTensor | None:
    if gradient.size_bytes is None or gradient.dtype is None:
        return None
    return TracedTensor(size_bytes=gradient.size_bytes, dtype=gradient.dtype)


def _with_sizes(
    steps: list[RecordedStep],
    calls: list[RecordedCall],
    gradients: list[TracedTensor],
    shapes: ExecutionTrace | None,
) -> list[RecordedCall]:
    """Return the calls during the steps; a size that was not recorded is looked up or inferred.

    In the execution trace, if both were recorded together; else, if a step has as many calls as it
    issued all-reduces, each call carried the gradients that were ready since the one before.
    """
    found: list[RecordedCall] = []
    by_record = {} if shapes is None else shapes.allreduces
    for step in steps:
        inside = [call for call in calls if step.start_s <= call.start_s < step.end_s]
        groups = [
            sum(tensor.size_bytes for tensor in gradients[before:after])
            for before, after in pairwise([0, *step.reduced_after])
        ]
        for place, call in enumerate(inside):
            size = call.size_bytes
            if size is None and call.record is not None and call.record in by_record:
                size = by_record[call.record].size_bytes
            recorded = size is not None
            if not recorded and len(groups) == len(inside):
                size = groups[place]
            found.append(replace(call, size_bytes=size, size_is_recorded=recorded))
    return found


def _median_step(rank: _Rank) -> TrainingStep:
    reference = rank.steps[-1]
    forward = _step_ops(rank, [step.forward for step in rank.steps])
    backward = _step_ops(rank, [step.backward for step in rank.steps])
    unjoined = 0
    gradients = []
    for gradient, tensor in zip(reference.gradients, rank.gradients, strict=True):
        consumer = reference.backward[gradient.producer].forward
        unjoined += consumer is None
        gradients.append(
            StepGradient(
                size_bytes=tensor.size_bytes,
                dtype=tensor.dtype,
                producer=gradient.producer,
                consumer=consumer or 0,
            )
        )
    if unjoined:
        warn(
            rank.trace.path,
            f"{unjoined} gradients have no forward op: they are taken to be needed by the first one",
        )
    update = statistics.median(_update_s(rank.clock, step) for step in rank.steps)
    return TrainingStep(forward=forward, backward=backward, gradients=tuple(gradients), update_s=update)


def _update_s(clock: Clock, step: RecordedStep) -> float:
    if clock == "device":
        return sum(sum(op.device_s.values()) for op in step.update)
    if not step.update:
        return 0.0
    span = max(op.op.end_s for op in step.update) - min(op.op.start_s for op in step.update)
    return max(span - sum(op.communication_s for op in step.update), 0.0)


def _step_ops(rank: _Rank, passes: list[list[RecordedOp]]) -> tuple[StepOp, ...]:
    durations = [_durations(rank.clock, ops) for ops in passes]
    medians = [statistics.median(each) for each in zip(*durations, strict=True)]
    # Disturbances hit other ops in every step: the sum of medians forgets them, the median of sums does not.
    total = sum(medians)
    scale = statistics.median(sum(step) for step in durations) / total if total else 1.0
    reference = passes[-1]
    modules = _modules(rank.trace, reference)
    streams = [max(op.device_s, key=lambda stream: op.device_s[stream], default=None) for op in reference]
    main = Counter(stream for stream in streams if stream is not None).most_common(1)
    names = ["compute" if not main or s in (None, main[0][0]) else f"stream {s[1]}" for s in streams]
    return tuple(
        StepOp(
            name=f"{place:03d}.{modules[place]}{op.name}",
            duration_s=medians[place] * scale,
            duration_std_s=statistics.pstdev(each),
            stream=names[place],
            waits_for_ops=_seen_before(reference, names, place),
        )
        for place, (op, each) in enumerate(zip(reference, zip(*durations, strict=True), strict=True))
    )


def _durations(clock: Clock, ops: list[RecordedOp]) -> list[float]:
    if clock == "device":
        return [sum(op.device_s.values()) for op in ops]
    ends = [after.op.start_s for _, after in pairwise(ops)] + [ops[-1].host_end_s]
    return [max(end - op.op.start_s - op.communication_s, 0.0) for op, end in zip(ops, ends, strict=True)]


def _seen_before(ops: list[RecordedOp], streams: list[str], place: int) -> tuple[int, ...]:
    """Return, for every other stream, the last op that was seen to end before this one started.

    A trace does not record what one stream waited for, so an order that was kept is taken as needed.
    """
    if len(set(streams)) == 1 or not ops[place].device_s:
        return ()
    last: dict[str, int] = {}
    for other in range(place):
        ended = ops[other].device_s and ops[other].device_end_s <= ops[place].device_start_s
        if ended and streams[other] != streams[place]:
            last[streams[other]] = other
    return tuple(sorted(last.values()))


def _modules(trace: KinetoTrace, ops: list[RecordedOp]) -> list[str]:
    """Return the innermost module around every op, as a prefix; empty where none was recorded."""
    if not trace.modules:
        return [""] * len(ops)
    modules = sorted(trace.modules, key=lambda module: (module.start_s, -module.end_s))
    prefixes = []
    stack = []
    waiting = iter(modules)
    following = next(waiting, None)
    for op in ops:
        start = op.op.start_s
        while following is not None and following.start_s <= start:
            stack.append(following)
            following = next(waiting, None)
        stack = [module for module in stack if module.end_s >= start]
        around = [module for module in stack if module.thread == op.op.thread]
        prefixes.append(f"{around[-1].name}." if around else "")
    return prefixes


def _workers(ranks: list[_Rank]) -> int | None:
    said = [rank.trace.workers for rank in ranks] + [c.workers for rank in ranks for c in rank.calls]
    known = [workers for workers in said if workers]
    return Counter(known).most_common(1)[0][0] if known else None


def _metadata(rank: _Rank, num_ranks: int, joined: bool, measured: bool) -> dict[str, Any]:
    steps = rank.steps
    wall = statistics.median(step.end_s - step.start_s for step in steps)
    busy = rank.compute_s + rank.step.update_s
    recorded, matches = _replay(rank)
    return {
        "origin": "imported",
        "tool": "Kineto" + (" with execution trace" if joined else ""),
        "ranks": num_ranks,
        "steps": len(steps),
        "clock": rank.clock,
        "step_wall_s": wall,
        "compute_s": busy,
        "update_s": rank.step.update_s,
        "busy_share": busy / wall if wall else 0.0,
        "allreduce_from_trace": measured,
        "recorded_allreduces": recorded,
        "recorded_allreduces_match": matches,
    }


def _replay(rank: _Rank) -> tuple[list[dict[str, Any]], bool | None]:
    """Return what each recorded all-reduce must have carried: the gradients ready since the one before.

    True if their sizes are those that were recorded, None if no sizes were.
    """
    step = rank.steps[-1]
    names = gradient_names(rank.step)
    calls = [call for call in rank.calls if step.start_s <= call.start_s < step.end_s]
    sizes = [call.size_bytes if call.size_is_recorded else None for call in calls]
    edges = list(pairwise([0, *step.reduced_after]))
    ready = [sum(tensor.size_bytes for tensor in rank.gradients[a:b]) for a, b in edges]
    groups = [
        {"gradients": names[a:b], "size_bytes": size} for (a, b), size in zip(edges, ready, strict=True)
    ]
    known = [size for size in sizes if size is not None]
    if not known or len(known) < len(sizes):
        return groups, None
    return groups, sorted(known) == sorted(ready)
