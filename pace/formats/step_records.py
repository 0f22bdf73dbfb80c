"""What a recorded training step consists of, whichever tool recorded it."""

from dataclasses import dataclass

from pace.documents.profile import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOp:
    """An op of the forward or backward pass.

    Attributes
    ----------
    waits_for_ops
        Places, in the same pass, of ops on other streams that end before it starts.
    """

    name: str
    duration_s: float
    duration_std_s: float = 0.0
    stream: str = "compute"
    waits_for_ops: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGradient:
    """A gradient: the places of its producer in the backward pass and its consumer in the forward pass."""

    size_bytes: int
    dtype: DType
    producer: int
    consumer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCollective:
    """A collective that is no all-reduce of gradients: communication that no schedule moves.

    Attributes
    ----------
    of_forward
        The pass that issued it.
    after
        Place, in its own pass, of the op that it starts after; None for the pass's start.
    before
        The op that starts after it: whether of the forward pass, and its place; None for the window's end.
    waited_s
        For how long that op had nothing else to wait for, 0 if for none. None if this is not known.
    """

    name: str
    of_forward: bool
    lane: str
    duration_s: float
    duration_std_s: float = 0.0
    after: int | None = None
    before: tuple[bool, int] | None = None
    waited_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """One step; gradients in the order in which they became ready, collectives in that of their start."""

    forward: tuple[StepOp, ...]
    backward: tuple[StepOp, ...]
    gradients: tuple[StepGradient, ...]
    update_s: float
    collectives: tuple[StepCollective, ...] = ()
