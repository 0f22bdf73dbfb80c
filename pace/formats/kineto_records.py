"""What a Kineto trace's steps consist of: operators with their device time, gradients, passes."""

import bisect
import re
from dataclasses import dataclass, field
from typing import Literal

from pace.documents.profile import DType
from pace.formats.kineto_trace import HostOp

BACKWARD = "autograd::engine::evaluate_function: "
ACCUMULATE = "torch::autograd::AccumulateGrad"
ROUNDING_S = 1.9e-6  # two floors, of a start and of a duration
UPDATE = "Optimizer.step#"
# Collectives and the copies that DistributedDataParallel makes for them are no compute.
COMMUNICATION = re.compile(
    r"nccl:|gloo:|c10d::|record_param_comms|aten::(un)?flatten_dense_tensors|"
    r"torch\.distributed\.ddp\.reducer::copy_bucket_to_grad"
)
# Of these, what hands a collective to a backend's own thread or stream.
ISSUES = re.compile(r"c10d::|record_param_comms")


def short_name(name: str) -> str:
    """Return an operator's name without its namespace, and of a backward node that of its operator."""
    return name.removeprefix(BACKWARD).removeprefix("aten::")


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
    lasting_s
        Time on the device, and of the device's waiting that only its host explains.
    """

    op: HostOp
    host_end_s: float
    device_s: dict[tuple[int | str, int | str], float] = field(default_factory=dict)
    device_start_s: float = float("inf")
    device_end_s: float = 0.0
    communication_s: float = 0.0
    lasting_s: float = 0.0
    gradients: int = 0
    forward: int | None = None

    @property
    def name(self) -> str:
        """The operator's name without its namespace."""
        return short_name(self.op.name)


@dataclass(slots=True)
class RecordedGradient:
    """A gradient as it was accumulated; size, dtype and shape are None without recorded shapes.

    Attributes
    ----------
    consumer
        Place of the forward op that uses it first, where the producer does not tell.
    tied
        Whether several uses of the parameter contributed: the engine added up before it accumulated.
    """

    producer: int
    record: int | None
    size_bytes: int | None
    dtype: DType | None
    undefined: bool = False
    tied: bool = False
    shape: tuple[int, ...] | None = None
    consumer: int | None = None


Part = Literal["forward", "backward", "update"]
Place = tuple[Part, int]


@dataclass(slots=True, kw_only=True)
class FixedCall:
    """A collective that no schedule moves: an all-to-all, an all-gather, a reduce-scatter, a broadcast.

    Attributes
    ----------
    issued_s, start_s, end_s
        When the host issued it, and when it ran.
    lane
        What it ran on: calls on one lane run one after another.
    part
        The part of the step that issued it.
    after, before
        Places of the last op that it was seen to wait for, in its own part, and of the first that waited for
        it, in any part; None if there is none.
    waited_s
        How long the device or the host waited for it and had nothing else to do.
    """

    name: str
    issued_s: float
    start_s: float
    end_s: float
    lane: tuple[int | str, int | str]
    part: Part
    after: int | None = None
    before: Place | None = None
    waited_s: float = 0.0


@dataclass(slots=True)
class KinetoStep:
    """One step of one rank.

    Attributes
    ----------
    number
        The N of its `ProfilerStep#N`.
    fixed
        Collectives that it issued, all-reduces left out, in the order in which they started.
    accumulated_s
        When each gradient was accumulated.
    reduced_after
        How many gradients were ready when each all-reduce was issued.
    passes
        How many backward passes it has; all are of micro-batches, or `folded` is 0.
    models
        How many backward passes sent gradients of their own, of other shapes; 1 if none did.
    folded
        How many of them counted as compute before the last: gradients were sent in the last one only.
    pass_starts_s, segments
        For a step with folded passes: when each began, and places of the ops that ran forward before it.
    undefined_gradients
        Accumulated gradients that were no tensors, as of parameters that fused kernels update.
    update_work_s
        Device time of the update that no operator launched: kernels of fused optimizers.
    reduced_s
        When its last all-reduce had ended.
    early_communication_s
        Time of collectives on the host before the first op.
    copies, copies_s
        Kernels that copy buckets and buffers, launched by DistributedDataParallel itself.
    update_lasting_s, span_s, host_s, exposed_s, fixed_s
        Seconds on the device's clock (``pace.formats.kineto_clocks``): the update, from the last step's end
        to this one's, waiting for the host, for all-reduces, and for other collectives.
    host_ahead_s
        Of the waiting for the host, what passed after the backward pass while all-reduces ran.
    """

    start_s: float
    end_s: float
    number: int | None = None
    forward: list[RecordedOp] = field(default_factory=list)
    backward: list[RecordedOp] = field(default_factory=list)
    update: list[RecordedOp] = field(default_factory=list)
    gradients: list[RecordedGradient] = field(default_factory=list)
    accumulated_s: list[float] = field(default_factory=list)
    reduced_after: list[int] = field(default_factory=list)
    fixed: list[FixedCall] = field(default_factory=list)
    communication_s: float = 0.0
    passes: int = 1
    models: int = 1
    folded: int = 0
    pass_starts_s: list[float] = field(default_factory=list)
    segments: list[list[int]] = field(default_factory=list)
    undefined_gradients: int = 0
    update_work_s: float = 0.0
    reduced_s: float = float("-inf")
    early_communication_s: float = 0.0
    copies: int = 0
    copies_s: float = 0.0
    update_lasting_s: float = 0.0
    span_s: float = 0.0
    span_is_whole: bool = True
    host_s: float = 0.0
    exposed_s: float = 0.0
    fixed_s: float = 0.0
    host_ahead_s: float = 0.0

    def ops_of(self, part: Part) -> list[RecordedOp]:
        """Return the ops of one part."""
        return self.forward if part == "forward" else self.backward if part == "backward" else self.update

    def part_at(self, moment_s: float) -> Part:
        """Return the part of the step that the host was in."""
        if moment_s < self.backward[0].op.start_s:
            return "forward"
        return "backward" if moment_s <= self.backward[-1].host_end_s else "update"

    @property
    def signature(self) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
        """What steps must have in common to be compared op by op."""
        return (
            tuple(op.name for op in self.forward),
            tuple((op.name, op.gradients) for op in self.backward),
        )


@dataclass(slots=True)
class Outermost:
    """The outermost operators of one thread, sorted, found by time."""

    starts: list[float]
    ops: list[HostOp]

    slack_s: float = 0.0

    def around(self, moment: float) -> HostOp | None:
        """Return the operator that ran at a moment; one that ended within the clock's rounding counts."""
        place = bisect.bisect_right(self.starts, moment) - 1
        if place < 0 or self.ops[place].end_s + self.slack_s < moment:
            return None
        return self.ops[place]
