"""From a Kineto trace's events to recorded steps: which op ran in which pass, and for how long.

The joins: a kernel belongs to the operator with its `External id` (or, failing that, to the operator
around the runtime call with its `correlation`); an operator belongs to the outermost operator around it
on its thread; a backward operator belongs to the forward operator with its `Sequence number`.
"""

import bisect
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter

from pace.documents.profile import DType
from pace.errors import FormatError
from pace.formats.kineto_trace import DeviceWork, HostOp, KinetoTrace, Thread
from pace.formats.reading import warn

BACKWARD = "autograd::engine::evaluate_function: "
ACCUMULATE = "torch::autograd::AccumulateGrad"
_STEP = re.compile(r"ProfilerStep#?\d+")
_UPDATE = "Optimizer.step#"
# Collectives and the copies that DistributedDataParallel makes for them are no compute.
COMMUNICATION = re.compile(
    r"nccl:|gloo:|c10d::|record_param_comms|aten::(un)?flatten_dense_tensors|"
    r"torch\.distributed\.ddp\.reducer::copy_bucket_to_grad"
)
_REDUCE, _REDUCE_NOTE = "c10d::allreduce_", "nccl:all_reduce"


@dataclass(slots=True)
class RecordedOp:
    """An outermost operator with what ran below it.

    Attributes
    ----------
    host_end_s
        When the host was done with it, the accumulation of its gradients included.
    device_s
        Time on the device by stream.
    communication_s
        Time of collectives issued inside it, on the host's clock.
    """

    op: HostOp
    host_end_s: float
    device_s: dict[tuple[int | str, int | str], float] = field(default_factory=dict)
    device_start_s: float = float("inf")
    device_end_s: float = 0.0
    communication_s: float = 0.0
    gradients: int = 0
    forward: int | None = None

    @property
    def name(self) -> str:
        """The operator's name without its namespace."""
        return self.op.name.removeprefix(BACKWARD).removeprefix("aten::")


@dataclass(slots=True)
class RecordedGradient:
    """A gradient as it was accumulated; size and dtype are None without recorded shapes."""

    producer: int
    record: int | None
    size_bytes: int | None
    dtype: DType | None


@dataclass(slots=True)
class RecordedStep:
    """One step of one rank; `reduced_after` counts the gradients ready at each all-reduce's start."""

    start_s: float
    end_s: float
    forward: list[RecordedOp] = field(default_factory=list)
    backward: list[RecordedOp] = field(default_factory=list)
    update: list[RecordedOp] = field(default_factory=list)
    gradients: list[RecordedGradient] = field(default_factory=list)
    reduced_after: list[int] = field(default_factory=list)
    communication_s: float = 0.0

    @property
    def signature(self) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
        """What steps must have in common to be compared op by op."""
        return (
            tuple(op.name for op in self.forward),
            tuple((op.name, op.gradients) for op in self.backward),
        )


@dataclass(slots=True)
class _Outermost:
    """The outermost operators of one thread, sorted, found by time."""

    starts: list[float]
    ops: list[HostOp]

    def around(self, moment: float) -> HostOp | None:
        place = bisect.bisect_right(self.starts, moment) - 1
        if place < 0 or self.ops[place].end_s < moment:
            return None
        return self.ops[place]


def recorded_steps(trace: KinetoTrace) -> list[RecordedStep]:
    """Return the steps that have a backward pass.

    Raises
    ------
    FormatError
        If there is none, or less than 90 % of the device's time can be given to operators.
    """
    for ops in (trace.ops, trace.annotations):
        ops.sort(key=lambda op: (op.start_s, -op.end_s))
    outermost = _outermost(trace.ops)
    taken: dict[int, RecordedOp] = {}
    steps = [_step(trace, start, end, outermost, taken) for start, end in _boundaries(trace)]
    steps = [step for step in steps if step.backward and step.forward]
    if not steps:
        raise FormatError(trace.path, "no step with a forward and a backward pass was found")
    _place_device_work(trace, outermost, taken, steps)
    _place_communication(trace, outermost, taken)
    for step in steps:
        _join_forward(trace, step)
    return steps


def _outermost(ops: Iterable[HostOp]) -> dict[Thread, _Outermost]:
    threads: defaultdict[Thread, list[HostOp]] = defaultdict(list)
    for op in ops:
        lane = threads[op.thread]
        if not lane or op.start_s >= lane[-1].end_s:
            lane.append(op)
    return {thread: _Outermost([op.start_s for op in lane], lane) for thread, lane in threads.items()}


def _boundaries(trace: KinetoTrace) -> list[tuple[float, float]]:
    steps = sorted((note.start_s, note.end_s) for note in trace.annotations if _STEP.fullmatch(note.name))
    if steps:
        return steps
    first = min(op.start_s for op in trace.ops)
    last = max(op.end_s for op in trace.ops)
    updates = sorted(note.end_s for note in trace.annotations if note.name.startswith(_UPDATE))
    edges = [first, *updates] if updates else [first, last]
    return list(pairwise(edges))


def _step(
    trace: KinetoTrace,
    start: float,
    end: float,
    outermost: dict[Thread, _Outermost],
    taken: dict[int, RecordedOp],
) -> RecordedStep:
    step = RecordedStep(start_s=start, end_s=end)
    inside = {
        thread: lane.ops[bisect.bisect_left(lane.starts, start) : bisect.bisect_left(lane.starts, end)]
        for thread, lane in outermost.items()
    }
    backward = sorted(
        (op for ops in inside.values() for op in ops if op.name.startswith(BACKWARD)),
        key=attrgetter("start_s"),
    )
    if not backward:
        return step
    main = _main_thread(trace, inside, backward[0].start_s)
    _add_backward(trace, step, backward, taken)
    last = max(op.end_s for op in backward)
    after_unflatten = False
    for op in inside.get(main, []):
        if op.name.startswith(BACKWARD):
            continue
        copies_buffers = after_unflatten and op.name == "aten::copy_"
        after_unflatten = op.name == "aten::unflatten_dense_tensors" or copies_buffers
        if COMMUNICATION.match(op.name) or copies_buffers:
            step.communication_s += op.end_s - op.start_s
            continue
        recorded = taken[id(op)] = RecordedOp(op, op.end_s)
        (step.forward if op.start_s < backward[0].start_s else step.update).append(recorded)
    step.update = [op for op in step.update if op.op.start_s >= last or op.op.thread != backward[0].thread]
    return step


def _main_thread(trace: KinetoTrace, inside: dict[Thread, list[HostOp]], before: float) -> Thread:
    for note in trace.annotations:
        if _STEP.fullmatch(note.name):
            return note.thread
    return max(inside, key=lambda thread: sum(op.start_s < before for op in inside[thread]))


def _add_backward(
    trace: KinetoTrace, step: RecordedStep, backward: list[HostOp], taken: dict[int, RecordedOp]
) -> None:
    for op in backward:
        if op.name != BACKWARD + ACCUMULATE:
            step.backward.append(RecordedOp(op, op.end_s))
            taken[id(op)] = step.backward[-1]
            continue
        if not step.backward:
            raise FormatError(
                trace.path, f"a gradient is accumulated at {op.start_s} s before any backward op"
            )
        # The engine accumulates a gradient right after the op that completed it.
        producer = step.backward[-1]
        producer.gradients += 1
        producer.host_end_s = op.end_s
        taken[id(op)] = producer
        step.gradients.append(
            RecordedGradient(producer=len(step.backward) - 1, record=op.record, size_bytes=None, dtype=None)
        )
    _add_shapes(trace, step, backward)


def _add_shapes(trace: KinetoTrace, step: RecordedStep, backward: list[HostOp]) -> None:
    starts = [op.start_s for op in backward if op.name == BACKWARD + ACCUMULATE]
    threads = {op.thread for op in backward}
    during = [op for op in _between(trace.ops, step.start_s, step.end_s) if op.thread in threads]
    for op in during:
        place = bisect.bisect_right(starts, op.start_s) - 1
        if op.name == ACCUMULATE and place >= 0:
            gradient = step.gradients[place]
            gradient.size_bytes, gradient.dtype = op.size_bytes, op.dtype
            if op.record is not None:
                gradient.record = op.record
    issued = [op.start_s for op in during if op.name.startswith(_REDUCE)]
    if not issued:  # older traces have only the annotation inside
        notes = _between(trace.annotations, step.start_s, step.end_s)
        issued = [note.start_s for note in notes if note.name == _REDUCE_NOTE and note.thread in threads]
    step.reduced_after = [bisect.bisect_right(starts, start) for start in issued]


def _between(ops: list[HostOp], start: float, end: float) -> list[HostOp]:
    key = attrgetter("start_s")
    return ops[bisect.bisect_left(ops, start, key=key) : bisect.bisect_left(ops, end, key=key)]


def _place_device_work(
    trace: KinetoTrace,
    outermost: dict[Thread, _Outermost],
    taken: dict[int, RecordedOp],
    steps: list[RecordedStep],
) -> None:
    by_external = {op.external: op for op in trace.ops if op.external is not None}
    lost = total = 0.0
    begin, finish = steps[0].start_s, steps[-1].end_s
    for work in trace.work:
        if work.collective is not None:
            continue
        moment = _launch(trace, work, by_external)
        if moment is None:
            if begin <= work.start_s < finish:
                total += work.duration_s
                lost += work.duration_s
            continue
        thread, start = moment
        lane = outermost.get(thread)
        around = None if lane is None else lane.around(start)
        recorded = None if around is None else taken.get(id(around))
        if recorded is None:
            if begin <= start < finish and not (around is not None and COMMUNICATION.match(around.name)):
                total += work.duration_s
                # Copies that DistributedDataParallel makes were left out with their operators.
                lost += work.duration_s if around is None else 0.0
            continue
        total += work.duration_s
        recorded.device_s[work.stream] = recorded.device_s.get(work.stream, 0.0) + work.duration_s
        recorded.device_start_s = min(recorded.device_start_s, work.start_s)
        recorded.device_end_s = max(recorded.device_end_s, work.start_s + work.duration_s)
    if lost > 0.1 * total:
        raise FormatError(
            trace.path, f"{lost / total:.0%} of the device's time belongs to no operator: ids are missing"
        )
    if lost > 0.01 * total:
        warn(trace.path, f"{lost / total:.1%} of the device's time belongs to no operator and was left out")


def _launch(
    trace: KinetoTrace, work: DeviceWork, by_external: dict[int, HostOp]
) -> tuple[Thread, float] | None:
    if work.external is not None and work.external in by_external:
        op = by_external[work.external]
        return op.thread, op.start_s
    return None if work.correlation is None else trace.launches.get(work.correlation)


def _place_communication(
    trace: KinetoTrace, outermost: dict[Thread, _Outermost], taken: dict[int, RecordedOp]
) -> None:
    """Note the host's time inside collectives: it is no compute of the op around them."""
    inner: defaultdict[Thread, float] = defaultdict(float)
    for op in trace.ops:
        if not COMMUNICATION.match(op.name) or op.start_s < inner[op.thread]:
            continue
        inner[op.thread] = op.end_s
        around = outermost[op.thread].around(op.start_s)
        if around is not None and id(around) in taken and around is not op:
            taken[id(around)].communication_s += op.end_s - op.start_s


def _join_forward(trace: KinetoTrace, step: RecordedStep) -> None:
    # An operator carries the number that the next recorded op will get, so the last one to carry it made it.
    place_of = {}
    first, last = step.forward[0].op.start_s, step.forward[-1].op.end_s
    starts = [op.op.start_s for op in step.forward]
    thread = step.forward[0].op.thread
    for op in _between(trace.ops, first, last):
        if op.sequence is None or op.thread != thread:
            continue
        place = bisect.bisect_right(starts, op.start_s) - 1
        if step.forward[place].op.end_s >= op.start_s:
            place_of[op.sequence] = place
    for recorded in step.backward:
        if recorded.op.sequence is not None:
            recorded.forward = place_of.get(recorded.op.sequence)
