"""Training steps from traces that record which operator called which, in order, but not when.

Execution traces and Chakra traces are of this kind; what an operator's duration is, each says itself.
"""

import bisect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from pace.errors import FormatError
from pace.formats.execution_trace import TracedOp, TracedTensor
from pace.formats.kineto_kind import SMALLEST_BYTES, JobKind
from pace.formats.kineto_records import ACCUMULATE, BACKWARD, COMMUNICATION, UPDATE, short_name
from pace.formats.reading import warn
from pace.formats.training_step import StepGradient, StepOp, TrainingStep

_FUNCTION_SCOPE, _BACKWARD_SCOPE = 0, 1
_SENDS = ("c10d::send", "c10d::recv")
_REDUCES = ("c10d::allreduce", "_c10d_functional::all_reduce")
_OF_SHARDS = (
    "c10d::reduce_scatter",
    "c10d::_reduce_scatter",
    "_c10d_functional::reduce_scatter",
    f"{UPDATE}ZeroRedundancyOptimizer",
)


def refuse_other_jobs(
    path: str | Path,
    forward: Iterable[tuple[str, int]],
    later: Iterable[tuple[str, int]],
    num_gradients: int,
) -> None:
    """Refuse a step of a job that all-reduces no whole gradients, as Kineto traces of it are refused.

    Parameters
    ----------
    forward, later
        Name and bytes of what the forward pass ran, and of what came after it.

    Raises
    ------
    FormatError
        With the kind of the job, and what to do next.
    """
    forward = list(forward)
    ran = [name for name, _ in (*forward, *later)]
    sends = sum(name.startswith(_SENDS) for name in ran)
    reduces = sum(name.startswith(_REDUCES) and size >= SMALLEST_BYTES for name, size in forward)
    of_shards = sum(name.startswith(_OF_SHARDS) for name in ran)
    if sends:
        kind = JobKind(
            name="pipeline parallel", sure="certain", why=f"{sends} sends and receives between ranks"
        )
    elif reduces > 1:
        why = f"{reduces} all-reduces a step in the forward pass"
        kind = JobKind(name="tensor parallel", sure="likely", why=why)
    elif of_shards:
        why = f"{of_shards} reduce-scatters or updates of shards in a step"
        kind = JobKind(name="ZeRO", sure="likely", why=why)
    elif not num_gradients:
        raise FormatError(
            path,
            "no gradient is accumulated in the last step: record whole steps, with their backward pass",
        )
    else:
        return
    raise FormatError(path, str(kind.refusal))


def refuse_repeated_passes(
    path: str | Path,
    ran: Iterable[tuple[str, int | None, int | None]],
    gradients: Sequence[TracedTensor],
) -> None:
    """Refuse a step that accumulated the same gradients more than once.

    Its backward passes are those of micro-batches, or of steps without marks. Nothing tells the ops of the
    second forward pass from those of the backward pass around it, and each gradient would be there twice.

    Parameters
    ----------
    ran
        Name, scope and sequence number of each op from the first backward op on.

    Raises
    ------
    FormatError
        If an op was differentiated that ran after the backward pass had begun, and the gradients repeat.
    """
    made: set[int] = set()
    again = False
    for name, scope, sequence in ran:
        if sequence is None:
            continue
        if name.startswith(BACKWARD) or scope == _BACKWARD_SCOPE:
            again = again or sequence in made
        elif scope == _FUNCTION_SCOPE:
            made.add(sequence)
    times = _repeats(gradients) if again else 1
    if times > 1:
        raise FormatError(
            path,
            f"a step has {times} backward passes over the same {len(gradients) // times} gradients: record "
            "steps of one micro-batch, and call profiler.step() after each",
        )


def _repeats(gradients: Sequence[TracedTensor]) -> int:
    """Return how many times a series of gradients comes, as long a series as there is."""
    for times in range(2, len(gradients) + 1):
        length, rest = divmod(len(gradients), times)
        if not rest and list(gradients) == list(gradients[:length]) * times:
            return times
    return 1


MAX_DEPTH = 500
_ANNOTATION_SCOPE = 7
_ROOT = re.compile(r"\[pytorch\|profiler\|execution_trace\|")


class OpTree:
    """The nodes by parent, in the order in which they ran."""

    def __init__(self, path: str | Path, ops: Iterable[TracedOp]) -> None:
        self.path = path
        self.ops = sorted(ops, key=lambda op: op.id)
        self.by_id = {op.id: op for op in self.ops}
        if len(self.by_id) < len(self.ops):
            raise FormatError(path, "two nodes have the same id")
        self.children: defaultdict[int, list[TracedOp]] = defaultdict(list)
        for op in self.ops:
            if op.parent != op.id:
                self.children[op.parent].append(op)
        for called in [each for each in self.children.values() if len(each) > 1]:
            self._return_taken(called)

    def _return_taken(self, called: list[TracedOp]) -> None:
        """Give nested backward ops what torch wrote to their parent, as another thread was recorded too."""
        for op, after in pairwise(tuple(called)):
            taken = not self.children.get(op.id) and op.name == f"{BACKWARD}{after.name}"
            if taken:
                called.remove(after)
                self.children[op.id].append(after)

    def is_annotation(self, op: TracedOp | None) -> bool:
        """Whether a node is a user's annotation or a thread's root; None is above every root."""
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

    def find(self, op: TracedOp, name: str, depth: int = 0) -> TracedOp | None:
        """Return the first node of a name in a subtree."""
        if op.name == name or depth > MAX_DEPTH:
            return op if op.name == name else None
        found = (self.find(child, name, depth + 1) for child in self.below(op))
        return next((node for node in found if node is not None), None)

    def sequences(self, op: TracedOp, depth: int = 0) -> list[int]:
        """Return the sequence numbers of an op and of what it called."""
        own = [] if op.sequence is None else [op.sequence]
        if depth > MAX_DEPTH:
            return own
        return own + [number for child in self.below(op) for number in self.sequences(child, depth + 1)]


def last_step(tree: OpTree, duration: Callable[[TracedOp], float]) -> TrainingStep:
    """Return the last step that has both passes; `duration` is asked for outermost ops.

    Raises
    ------
    FormatError
        If there is none, or a gradient has no shape.
    """
    outermost = tree.outermost()
    ids = [op.id for op in outermost]
    starts = [op.id for op in tree.ops if op.name.startswith("ProfilerStep#")] or [0]
    edges = [*starts, ids[-1] + 1 if ids else 0]
    for start, end in reversed(list(pairwise(edges))):
        inside = outermost[bisect.bisect_left(ids, start) : bisect.bisect_left(ids, end)]
        first = next((place for place, op in enumerate(inside) if op.name.startswith(BACKWARD)), None)
        if first:
            return _step(tree, inside, first, duration)
    raise FormatError(tree.path, "no step with a forward and a backward pass was found")


def _step(
    tree: OpTree, ops: list[TracedOp], first: int, duration: Callable[[TracedOp], float]
) -> TrainingStep:
    forward: list[StepOp] = []
    consumer: dict[int, int] = {}
    for op in _compute(ops[:first]):
        for number in tree.sequences(op):
            consumer[number] = len(forward)
        forward.append(StepOp(name=f"{len(forward):03d}.{short_name(op.name)}", duration_s=duration(op)))
    backward: list[StepOp] = []
    producers: list[TracedOp] = []
    gradients: list[tuple[TracedOp, int]] = []
    update_s = 0.0
    for op in ops[first:]:
        if op.name == BACKWARD + ACCUMULATE:
            node = tree.find(op, ACCUMULATE)
            if node is not None and node.undefined:
                continue
            if node is None or not node.inputs or not backward:
                raise FormatError(
                    tree.path, f"the gradient accumulated at id {op.id} has no shape or no producer"
                )
            gradients.append((node, len(backward) - 1))
        elif op.name.startswith(BACKWARD):
            backward.append(
                StepOp(name=f"{len(backward):03d}.{short_name(op.name)}", duration_s=duration(op))
            )
            producers.append(op)
        elif not COMMUNICATION.match(op.name):
            update_s += duration(op)
    before = ((op.name, op.sent_bytes) for op in tree.ops if ops[0].id <= op.id < ops[first].id)
    ran = [op for op in tree.ops if ops[first].id <= op.id <= ops[-1].id]
    refuse_other_jobs(tree.path, before, ((op.name, op.sent_bytes) for op in ran), len(gradients))
    refuse_repeated_passes(
        tree.path,
        ((op.name, op.scope, op.sequence) for op in ran),
        [node.inputs[0] for node, _ in gradients],
    )
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
