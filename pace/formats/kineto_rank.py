"""The median step, the gradients and the all-reduces of one rank's Kineto trace."""

import bisect
import math
import statistics
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter

from pace.documents.profile import ELEMENT_BYTES, DType
from pace.errors import FormatError
from pace.formats.execution_trace import ExecutionTrace, TracedTensor
from pace.formats.fixed_collectives import measure_on_host, note_fixed_calls
from pace.formats.kineto_clocks import (
    TraceClock,
    choose_clock,
    durations,
    measure_device,
    update_duration,
    wall_durations,
)
from pace.formats.kineto_comparable import comparable_steps, refuse_unequal_steps
from pace.formats.kineto_kind import kind_of_job, sent_share, set_apart, with_hook
from pace.formats.kineto_records import KinetoStep, Part, RecordedGradient, RecordedOp
from pace.formats.kineto_steps import recorded_steps
from pace.formats.kineto_trace import KinetoTrace
from pace.formats.parameters import in_ready_order
from pace.formats.reading import warn
from pace.formats.recorded_collectives import ALL_REDUCE, RecordedCall, issued_during, recorded_calls
from pace.formats.replay import ReplayedCall, shares_of_the_wire
from pace.formats.training_step import StepCollective, StepGradient, StepOp, TrainingStep


class RankTrace:
    """The median step and the all-reduces of one rank's trace."""

    def __init__(
        self,
        trace: KinetoTrace,
        shapes: ExecutionTrace | None,
        clock: TraceClock,
        parameters: Sequence[TracedTensor] | None = None,
    ) -> None:
        self.trace = trace
        every, self.placed = recorded_steps(trace)
        collectives = recorded_calls(trace)
        self.kind = kind_of_job(trace, every, collectives)
        if self.kind.refusal is not None:
            raise FormatError(trace.path, self.kind.refusal)
        if self.kind.name.startswith("DDP"):
            collectives = set_apart(every, collectives)
        note_fixed_calls(every, collectives)
        measure_device(every, self.placed, collectives)
        self.clock = choose_clock(clock, every, self.placed)
        if self.clock == "host":
            measure_on_host(trace, every, collectives)
        self.steps = comparable_steps(trace, every)
        self.dropped_steps = len(every) - len(self.steps)
        self.gradients = _with_shapes(trace, self.steps, shapes, parameters)
        reduces = [call for call in collectives if call.name == ALL_REDUCE]
        refuse_unequal_steps(trace, self.steps, reduces)
        share = sent_share(self.steps, reduces, [tensor.size_bytes for tensor in self.gradients])
        self.kind = with_hook(self.kind, share)
        if share < 1:
            sent = {call.dtype for call in reduces}
            self.gradients = [_compressed(tensor, share, sent) for tensor in self.gradients]
        if self.kind.name == "HSDP":
            self.gradients = _reduced_units(self.trace, self.steps, reduces)
        self._others = [call for call in collectives if call.name != ALL_REDUCE]
        self.others = Counter(call.name for call in self._others)
        self.calls = _with_sizes(self.steps, reduces, self.gradients, shapes)
        for step in self.steps:
            step.reduced_s = max((call.end_s for call in self.calls_of(step)), default=-math.inf)
        self.step = _median_step(self)
        self.compute_s = sum(op.duration_s for op in (*self.step.forward, *self.step.backward))
        self.wall_s = wall_durations(self.clock, self.steps)

    @property
    def workers(self) -> list[int]:
        """Numbers of workers in the all-reduces, one for each place in the trace that states it."""
        if self.kind.name != "HSDP":
            return [workers for workers in (self.trace.workers, *(c.workers for c in self.calls)) if workers]
        scattered = sum(call.size_bytes or 0 for call in self._others if call.name == "reduce_scatter")
        reduced = sum(call.size_bytes or 0 for call in self.calls)
        said = [call.workers for call in self.calls if call.workers and call.workers != self.trace.workers]
        if said or not (scattered and self.trace.workers):
            return said
        return [max(round(self.trace.workers * reduced / scattered), 1)]

    def calls_of(self, step: KinetoStep) -> list[RecordedCall]:
        """Return the all-reduces that a step issued."""
        return list(issued_during(self.calls, step.start_s, step.end_s))

    def replayed_calls(self, step: KinetoStep) -> list[ReplayedCall]:
        """Return a step's all-reduces for a replay: on their lanes, as long as they took."""
        calls = sorted(self.calls_of(step), key=attrgetter("issued_s"))
        backward_end = step.backward[-1].host_end_s
        free: dict[object, float] = {}
        result = []
        for place, call in enumerate(calls):
            lane = call.thread or call.lane
            ready = bisect.bisect_right(step.accumulated_s, call.issued_s)
            behind = call.issued_s >= backward_end
            before = range(place) if behind else ()
            over = [number for number in before if calls[number].end_s <= call.issued_s]
            follows = over[-1] + 1 if over else 0
            # A trace's clock starts with its first event, which may lie in the middle of a step.
            ended = [calls[number].end_s for number in over]
            since = max(self._ready_s(step, ready, call), free.get(lane, -math.inf), *ended, -math.inf)
            free[lane] = call.end_s
            result.append(
                ReplayedCall(
                    ready=ready,
                    size_bytes=call.size_bytes or 0,
                    lane=str(lane[-1]),
                    duration_s=call.duration_s,
                    delay_s=max(call.start_s - since, 0.0),
                    follows=follows,
                )
            )
        return result

    def _ready_s(self, step: KinetoStep, ready: int, call: RecordedCall) -> float:
        """Return when gradients were ready, on the clock whose durations count."""
        producers = [gradient.producer for gradient in step.gradients[:ready]]
        done = step.backward[: max(producers, default=-1) + 1]
        if self.clock == "host" or not any(op.device_s for op in done):
            return min(call.issued_s, step.backward[-1].host_end_s)
        return max(op.device_end_s for op in done)

    def collectives_of(self, step: KinetoStep) -> list[RecordedCall]:
        """Return all collectives that a step issued, in the order in which it did."""
        others = issued_during(self._others, step.start_s, step.end_s)
        return sorted((*self.calls_of(step), *others), key=attrgetter("issued_s"))


def _with_shapes(
    trace: KinetoTrace,
    steps: list[KinetoStep],
    shapes: ExecutionTrace | None,
    parameters: Sequence[TracedTensor] | None,
) -> list[TracedTensor]:
    gradients = steps[-1].gradients
    if shapes is not None:
        return shapes.gradients_like([gradient.record for gradient in gradients])
    found = [_recorded_tensor(gradient) for gradient in gradients]
    if parameters is not None and None in found:
        return in_ready_order(trace.path, parameters, len(gradients))
    missing = sum(tensor is None for tensor in found)
    if missing:
        raise FormatError(
            trace.path,
            f"the sizes of {missing} of {len(gradients)} gradients were not recorded: give the execution "
            "trace of the same workload, the list of parameters, or record with record_shapes=True",
        )
    return [tensor for tensor in found if tensor is not None]


def _recorded_tensor(gradient: RecordedGradient) -> TracedTensor | None:
    if gradient.size_bytes is None or gradient.dtype is None:
        return None
    return TracedTensor(size_bytes=gradient.size_bytes, dtype=gradient.dtype)


def _compressed(tensor: TracedTensor, share: float, sent: Collection[DType | None]) -> TracedTensor:
    """Return what a communication hook sends of a gradient, in the types of the recorded all-reduces."""
    size = ELEMENT_BYTES[tensor.dtype] * share
    likely: DType = "float16" if size == ELEMENT_BYTES["float16"] else "uint8"
    told = sorted(dtype for dtype in sent if dtype is not None and ELEMENT_BYTES[dtype] == size)
    dtype = told[0] if told else likely
    return TracedTensor(size_bytes=max(round(tensor.size_bytes * share), 1), dtype=dtype)


def _reduced_units(
    trace: KinetoTrace, steps: list[KinetoStep], reduces: list[RecordedCall]
) -> list[TracedTensor]:
    """Make one gradient of what each all-reduce of a shard carries: made last, used first."""
    tensors: list[TracedTensor] = []
    for step in steps:
        own = issued_during(reduces, step.start_s, step.end_s)
        edges = list(pairwise([0, *step.reduced_after]))
        units_before = edges[:-1] if edges[-1][1] else edges
        if len(own) != len(edges) or any(first == last for first, last in units_before):
            reason = "which all-reduce holds the shards of which gradients cannot be told from their order"
            raise FormatError(trace.path, f"HSDP with {len(own)} all-reduces of shards a step: {reason}")
        if not all(call.size_bytes for call in own):
            raise FormatError(trace.path, "the trace does not say what the all-reduces of shards carried")
        units = []
        for first, last in edges:
            # The outermost unit, sent last, may hold only what became ready first, such as a model's head.
            members = step.gradients[first:last] or step.gradients[:last]
            uses = [step.backward[gradient.producer].forward for gradient in members]
            known = [use for use in uses if use is not None]
            units.append(replace(members[-1], consumer=min(known, default=None)))
        tensors = [
            TracedTensor(size_bytes=call.size_bytes or 0, dtype=units[0].dtype or "float32") for call in own
        ]
        step.gradients, step.reduced_after = units, list(range(1, len(units) + 1))
        step.accumulated_s = [call.issued_s for call in own]
    return tensors


def _with_sizes(
    steps: list[KinetoStep],
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
        inside = issued_during(calls, step.start_s, step.end_s)
        shares = shares_of_the_wire([(call.start_s, call.end_s) for call in inside])
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
            found.append(replace(call, size_bytes=size, size_is_recorded=recorded, share=shares[place]))
    return sorted(found, key=attrgetter("issued_s"))


def _median_step(rank: RankTrace) -> TrainingStep:
    reference = rank.steps[-1]
    forward = _step_ops(rank, "forward")
    backward = _step_ops(rank, "backward")
    unjoined = 0
    gradients = []
    for gradient, tensor in zip(reference.gradients, rank.gradients, strict=True):
        consumer = gradient.consumer
        if consumer is None:
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
    update = statistics.median(update_duration(rank.clock, step) for step in rank.steps)
    if rank.clock == "hybrid":
        ahead = min(statistics.median(step.host_ahead_s for step in rank.steps), update)
        if ahead > 0:
            # The host reaches the update's first kernel while all-reduces run: it waits for none of them.
            backward = (*backward, StepOp(name=f"{len(backward):03d}.host", duration_s=ahead))
            update -= ahead
    return TrainingStep(
        forward=forward,
        backward=backward,
        gradients=tuple(gradients),
        update_s=update,
        collectives=_collectives(rank),
    )


def _collectives(rank: RankTrace) -> tuple[StepCollective, ...]:
    """Return the last step's fixed collectives; durations are medians over the steps that issued the same."""
    reference = rank.steps[-1].fixed
    form = [(call.name, call.part, call.lane) for call in reference]
    same = [
        step.fixed
        for step in rank.steps
        if [(call.name, call.part, call.lane) for call in step.fixed] == form
    ]
    lanes = {lane: number for number, lane in enumerate(dict.fromkeys(call.lane for call in reference))}
    result = []
    for place, call in enumerate(reference):
        lasting = [each[place].end_s - each[place].start_s for each in same]
        waited = [each[place].waited_s for each in same]
        number = lanes[call.lane]
        result.append(
            StepCollective(
                name=call.name,
                of_forward=call.part == "forward",
                lane=f"collectives {number + 1}" if number else "collectives",
                duration_s=statistics.median(lasting),
                duration_std_s=statistics.pstdev(lasting),
                after=call.after,
                before=None if call.before is None else (call.before[0] == "forward", call.before[1]),
                waited_s=None if rank.clock == "device" else statistics.median(waited),
            )
        )
    return tuple(result)


def _step_ops(rank: RankTrace, part: Part) -> tuple[StepOp, ...]:
    each_step = [durations(rank.clock, step, part) for step in rank.steps]
    medians = [statistics.median(each) for each in zip(*each_step, strict=True)]
    # Disturbances hit other ops in every step: the sum of medians forgets them, the median of sums does not.
    total = sum(medians)
    scale = statistics.median(sum(step) for step in each_step) / total if total else 1.0
    reference = rank.steps[-1].ops_of(part)
    modules = _modules(rank.trace, reference)
    # The host runs one op after another, and the hybrid clock takes the device's streams together.
    names = _streams(reference) if rank.clock == "device" else ["compute"] * len(reference)
    return tuple(
        StepOp(
            name=f"{place:03d}.{modules[place]}{op.name}",
            duration_s=medians[place] * scale,
            duration_std_s=statistics.pstdev(each),
            stream=names[place],
            waits_for_ops=_seen_before(reference, names, place),
        )
        for place, (op, each) in enumerate(zip(reference, zip(*each_step, strict=True), strict=True))
    )


def _streams(reference: list[RecordedOp]) -> list[str]:
    streams = [max(op.device_s, key=lambda stream: op.device_s[stream], default=None) for op in reference]
    main = Counter(stream for stream in streams if stream is not None).most_common(1)
    return ["compute" if not main or s in (None, main[0][0]) else f"stream {s[1]}" for s in streams]


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
