"""From a Kineto trace's events to recorded steps: which op ran in which pass, and for how long.

The joins: a kernel belongs to the operator around the call that launched it
(``pace.formats.kineto_device``); an operator belongs to the outermost operator around it on its thread,
but a backward op that runs inside another one, as in reentrant checkpointing, stands for itself; a backward
operator belongs to the forward operator with its `Sequence number`.
"""

import bisect
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter

from pace.documents.base import repeated
from pace.errors import FormatError
from pace.formats.kineto_device import PlacedWork, place_device_work
from pace.formats.kineto_kind import SAMPLED, kind_without_steps
from pace.formats.kineto_passes import (
    accumulates,
    made_at,
    num_models,
    ops_between,
    pass_starts,
    require_same_gradients,
    segments_between,
    unmarked_steps,
)
from pace.formats.kineto_records import (
    ACCUMULATE,
    BACKWARD,
    COMMUNICATION,
    ISSUES,
    ROUNDING_S,
    UPDATE,
    KinetoStep,
    Outermost,
    RecordedGradient,
    RecordedOp,
)
from pace.formats.kineto_trace import HostOp, KinetoTrace, Thread

_STEP = re.compile(r"ProfilerStep#?(\d+)")
_ADD = ("aten::add", "aten::add_")
_REDUCE, _REDUCE_NOTE = "c10d::allreduce_", "nccl:all_reduce"
# What sends gradients: hooks of the engine, and those of ``fully_shard``.
_SENDERS = (BACKWARD, ACCUMULATE, "RegisterPostBackwardFunction")
_MOST_STATISTICS = 2**14  # elements: of more channels no layer takes statistics


def recorded_steps(trace: KinetoTrace) -> tuple[list[KinetoStep], PlacedWork]:
    """Return the steps that have a backward pass, and their work on the device.

    Raises
    ------
    FormatError
        If there is none, or less than 90 % of the device's time can be given to operators.
    """
    for ops in (trace.ops, trace.annotations):
        ops.sort(key=lambda op: (op.start_s, -op.end_s, op.external or 0))
    _find_reduces_of_layers(trace)
    outermost = _outermost(trace.ops, rounded=trace.rounded)
    taken: dict[int, RecordedOp] = {}
    steps = [_step(trace, *edges, outermost, taken) for edges in _boundaries(trace, outermost)]
    steps = [step for step in steps if step.backward and step.forward]
    if not steps:
        kind = kind_without_steps(trace)
        reason = "no step with a forward and a backward pass was found"
        raise FormatError(trace.path, (kind and kind.refusal) or reason)
    if steps[0].number is None:
        require_same_gradients(
            trace.path, [[gradient.size_bytes for gradient in step.gradients] for step in steps]
        )
    placed = place_device_work(trace, outermost, taken, steps)
    _place_communication(trace, outermost, taken)
    for step in steps:
        _join_forward(trace, step)
    return steps, placed


def _find_reduces_of_layers(trace: KinetoTrace) -> None:
    """Mark small all-reduces that an operator issued, unless all were: hooks of the engine send gradients."""
    around: defaultdict[Thread, list[HostOp]] = defaultdict(list)
    reduces: list[HostOp] = []
    found: list[HostOp] = []
    for op in trace.ops:
        opened = around[op.thread]
        while opened and opened[-1].end_s <= op.start_s:
            opened.pop()
        if op.name.startswith(_REDUCE):
            reduces.append(op)
            issuer = next((each for each in reversed(opened) if not COMMUNICATION.match(each.name)), None)
            by_layer = issuer is not None and not issuer.name.startswith(_SENDERS)
            if by_layer and 0 < op.elements <= _MOST_STATISTICS:
                found.append(op)
        opened.append(op)
    if len(found) < len(reduces):
        for op in found:
            op.of_layer = True


def _outermost(ops: Iterable[HostOp], *, rounded: bool) -> dict[Thread, Outermost]:
    """Find the outermost operators of every thread.

    On a clock of whole microseconds the recorded end of an op is up to two of them early: an op that
    starts then and ends within them belongs to the one before.
    """
    slack = ROUNDING_S if rounded else 0.0
    threads: defaultdict[Thread, list[HostOp]] = defaultdict(list)
    nested: defaultdict[int, list[HostOp]] = defaultdict(list)
    for op in ops:
        lane = threads[op.thread]
        if lane and (op.start_s < lane[-1].end_s or op.end_s < lane[-1].end_s + slack):
            if op.name.startswith(BACKWARD) and lane[-1].name.startswith(BACKWARD):
                nested[id(lane[-1])].append(op)
            continue
        lane.append(op)
    result = {}
    for thread, lane in threads.items():
        opened = [piece for op in lane for piece in _opened(op, nested.get(id(op), []))]
        result[thread] = Outermost([op.start_s for op in opened], opened, slack)
    return result


def _opened(op: HostOp, nested: list[HostOp]) -> list[HostOp]:
    """Return an op, or where backward ops ran inside it: what ran before the first, and those."""
    inner: list[HostOp] = []
    for other in nested:
        # The innermost ones count: an op around others is what ran before them.
        if inner and other.start_s < inner[-1].end_s:
            inner[-1] = replace(inner[-1], end_s=other.start_s)
        inner.append(other)
    if not inner:
        return [op]
    pieces = [op, *inner]
    ends = [*(piece.start_s for piece in inner), op.end_s]
    return [
        replace(piece, end_s=end, fallback_sequence=op.sequence)
        for piece, end in zip(pieces, ends, strict=True)
    ]


def _boundaries(
    trace: KinetoTrace, outermost: dict[Thread, Outermost]
) -> list[tuple[float, float, int | None]]:
    found = ((_STEP.fullmatch(note.name), note) for note in trace.annotations)
    steps = sorted((note.start_s, note.end_s, int(match[1])) for match, note in found if match)
    if (twice := repeated(str(number) for _, _, number in steps)) is not None:
        raise FormatError(trace.path, f"ProfilerStep#{twice} is in it twice: pass one trace for each rank")
    if steps:
        return list(steps)
    first = min(op.start_s for op in trace.ops)
    last = max(op.end_s for op in trace.ops)
    updates = sorted(note.end_s for note in trace.annotations if note.name.startswith(UPDATE))
    edges = [first, *updates] if updates else [first, *_unmarked_steps(trace, outermost), last]
    return [(start, end, None) for start, end in pairwise(edges)]


def _unmarked_steps(trace: KinetoTrace, outermost: dict[Thread, Outermost]) -> list[float]:
    lanes = {thread: lane.ops for thread, lane in outermost.items()}
    backward = [op for ops in lanes.values() for op in ops if op.name.startswith(BACKWARD)]
    if not backward:
        return []
    backward.sort(key=attrgetter("start_s"))
    main = lanes[_main_thread(trace, lanes, backward[-1].start_s)]
    return unmarked_steps(trace.path, trace.ops, trace.annotations, backward, main)


def _step(
    trace: KinetoTrace,
    start: float,
    end: float,
    number: int | None,
    outermost: dict[Thread, Outermost],
    taken: dict[int, RecordedOp],
) -> KinetoStep:
    step = KinetoStep(start_s=start, end_s=end, number=number)
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
    folded = _fold_micro_batches(trace, step, backward, inside.get(main, []))
    backward = backward[len(folded) :]
    _add_backward(trace, step, backward, taken)
    first, last = backward[0].start_s, max(op.end_s for op in backward)
    after_unflatten = False
    backward_starts = [op.op.start_s for op in step.backward]
    for op in inside.get(main, []):
        if op.name.startswith(BACKWARD) and op.start_s >= first:
            continue
        copies_buffers = after_unflatten and op.name == "aten::copy_"
        after_unflatten = op.name == "aten::unflatten_dense_tensors" or copies_buffers
        if COMMUNICATION.match(op.name) or copies_buffers:
            step.communication_s += op.end_s - op.start_s
            continue
        if first <= op.start_s < last and op.thread == backward[0].thread:
            # Hooks run between the engine's ops, on its thread: their work counts for the op before.
            taken[id(op)] = step.backward[bisect.bisect_right(backward_starts, op.start_s) - 1]
            continue
        recorded = taken[id(op)] = RecordedOp(op, op.end_s)
        (step.forward if op.start_s < backward[0].start_s else step.update).append(recorded)
    for op in folded:
        if id(op) not in taken:
            taken[id(op)] = RecordedOp(op, op.end_s)
            step.forward.append(taken[id(op)])
    if folded:
        step.forward.sort(key=lambda recorded: recorded.op.start_s)
        step.segments = segments_between([recorded.op for recorded in step.forward], step.pass_starts_s)
    return step


def _fold_micro_batches(
    trace: KinetoTrace, step: KinetoStep, backward: list[HostOp], main: list[HostOp]
) -> list[HostOp]:
    """Return the ops of the passes that sent nothing, if the last one sent the sum of all."""
    ops = ops_between(trace.ops, step.start_s, step.end_s)
    edges = pass_starts(backward, made_at([op for op in ops if main and op.thread == main[0].thread], main))
    step.passes = len(edges)
    accumulated = [op for op in ops if op.name == ACCUMULATE]
    issued_s = issue_times(trace, step.start_s, step.end_s)
    if not accumulates(backward, edges, accumulated):
        step.models = num_models(backward, edges, accumulated, issued_s)
        return []
    step.pass_starts_s = [backward[edge].start_s for edge in edges]
    first, last = step.pass_starts_s[0], step.pass_starts_s[-1]
    if any(first < moment < last for moment in issued_s):
        return []
    step.folded = len(edges) - 1
    return backward[: edges[-1]]


def issue_times(
    trace: KinetoTrace, start_s: float, end_s: float, threads: set[Thread] | None = None
) -> list[float]:
    """Return when all-reduces were issued between two moments: on these threads, if there were any."""
    during = ops_between(trace.ops, start_s, end_s)
    issued = [op for op in during if op.name.startswith(_REDUCE) and not op.of_layer]
    if not issued:  # older traces have only the annotation inside
        notes = ops_between(trace.annotations, start_s, end_s)
        issued = [note for note in notes if note.name == _REDUCE_NOTE]
    inside = [op for op in issued if threads is None or op.thread in threads]
    return [op.start_s for op in inside or issued]


def _main_thread(trace: KinetoTrace, inside: dict[Thread, list[HostOp]], before: float) -> Thread:
    for note in trace.annotations:
        if _STEP.fullmatch(note.name):
            return note.thread
    return max(inside, key=lambda thread: sum(op.start_s < before for op in inside[thread]))


def _add_backward(
    trace: KinetoTrace, step: KinetoStep, backward: list[HostOp], taken: dict[int, RecordedOp]
) -> None:
    for op in backward:
        if op.name != BACKWARD + ACCUMULATE:
            step.backward.append(RecordedOp(op, op.end_s))
            taken[id(op)] = step.backward[-1]
            continue
        if not step.backward:
            raise FormatError(trace.path, str(SAMPLED.refusal))
        # The engine accumulates a gradient right after the op that completed it.
        producer = step.backward[-1]
        producer.gradients += 1
        producer.host_end_s = op.end_s
        taken[id(op)] = producer
        step.gradients.append(
            RecordedGradient(producer=len(step.backward) - 1, record=op.record, size_bytes=None, dtype=None)
        )
    _add_shapes(trace, step, backward)


def _add_shapes(trace: KinetoTrace, step: KinetoStep, backward: list[HostOp]) -> None:
    starts = [op.start_s for op in backward if op.name == BACKWARD + ACCUMULATE]
    threads = {op.thread for op in backward}
    during = [op for op in ops_between(trace.ops, step.start_s, step.end_s) if op.thread in threads]
    for op in during:
        place = bisect.bisect_right(starts, op.start_s) - 1
        if op.name == ACCUMULATE and place >= 0:
            gradient = step.gradients[place]
            gradient.size_bytes, gradient.dtype = op.size_bytes, op.dtype
            gradient.undefined, gradient.shape = op.undefined, op.shape
            if op.record is not None:
                gradient.record = op.record
    for gradient in step.gradients:
        gradient.tied = _is_tied(during, step.backward[gradient.producer].op, gradient.size_bytes)
    issued = issue_times(trace, step.start_s, step.end_s, threads)
    defined = [gradient for gradient in step.gradients if not gradient.undefined]
    starts = [start for start, gradient in zip(starts, step.gradients, strict=True) if not gradient.undefined]
    for gradient in step.gradients:
        step.backward[gradient.producer].gradients -= gradient.undefined
    step.undefined_gradients = len(step.gradients) - len(defined)
    step.gradients, step.accumulated_s = defined, starts
    step.reduced_after = [bisect.bisect_right(starts, start) for start in issued]


def _is_tied(during: list[HostOp], producer: HostOp, size_bytes: int | None) -> bool:
    """Return whether the engine added to a gradient after the op that completed it: another use's part."""
    inside = [
        op for op in ops_between(during, producer.start_s, producer.end_s) if op.thread == producer.thread
    ]
    node = producer.name.removeprefix(BACKWARD)
    ended = max((op.end_s for op in inside if op.name == node), default=producer.end_s)
    added = (op for op in inside if op.name in _ADD and op.start_s >= ended)
    return size_bytes is not None and any(op.size_bytes == size_bytes for op in added)


def _place_communication(
    trace: KinetoTrace, outermost: dict[Thread, Outermost], taken: dict[int, RecordedOp]
) -> None:
    """Note the host's time for collectives that is no compute of the op around them.

    Issuing one is: it ends before the collective does, and until then the op's thread does nothing else.
    """
    inner: defaultdict[Thread, float] = defaultdict(float)
    for op in trace.ops:
        if not COMMUNICATION.match(op.name) or ISSUES.match(op.name) or op.start_s < inner[op.thread]:
            continue
        inner[op.thread] = op.end_s
        around = outermost[op.thread].around(op.start_s)
        if around is not None and id(around) in taken and around is not op:
            taken[id(around)].communication_s += op.end_s - op.start_s


def _join_forward(trace: KinetoTrace, step: KinetoStep) -> None:
    # An operator carries the number that the next recorded op will get, so the last one to carry it made it.
    place_of = {}
    first, last = step.forward[0].op.start_s, step.forward[-1].op.end_s
    starts = [op.op.start_s for op in step.forward]
    thread = step.forward[0].op.thread
    for op in ops_between(trace.ops, first, last):
        if op.sequence is None or op.thread != thread:
            continue
        place = bisect.bisect_right(starts, op.start_s) - 1
        if step.forward[place].op.end_s >= op.start_s:
            place_of[op.sequence] = place
    first_use = _first_uses(step)
    for recorded in step.backward:
        for sequence in (recorded.op.sequence, recorded.op.fallback_sequence):
            if sequence is not None and recorded.forward is None and sequence in place_of:
                recorded.forward = first_use.get(place_of[sequence], place_of[sequence])


def _first_uses(step: KinetoStep) -> dict[int, int]:
    """Map the ops of the last micro-batch to the same ops of the first, which use the parameters first."""
    if not step.segments:
        return {}
    first, last = step.segments[0], step.segments[-1]
    # Where micro-batches ran different ops, nothing is needed later than by the step's first op.
    return {
        place: first[at]
        if at < len(first) and step.forward[first[at]].name == step.forward[place].name
        else 0
        for at, place in enumerate(last)
    }
