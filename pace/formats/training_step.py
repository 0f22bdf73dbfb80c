"""One recorded training step of any tool, and the profile that is made from it.

A step has a forward pass, a backward pass and an update of the parameters. The profile's window starts
with the backward pass and ends with the next forward pass, which is taken to be like the recorded one.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pace.documents.collective_costs import AllReduce
from pace.documents.profile import DType, Gradient, Op, Profile
from pace.errors import FormatError
from pace.formats.reading import validated


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


class FixedOps:
    """A step's collectives that no schedule moves, as ops on streams of their own.

    Where an op was seen to wait for a collective, the collective ends so long after the op before that one:
    the recorded step comes out again, though the host's order of ops is not always the device's. A collective
    that nothing waited for lasts no longer than the ops beside it.

    Attributes
    ----------
    forward, backward
        Places of ops that a collective follows or precedes, which a profile must keep.
    """

    def __init__(self, step: TrainingStep, updates_s: Sequence[float]) -> None:
        self.forward: set[int] = set()
        self.backward: set[int] = set()
        self._step = step
        self._followed_by: defaultdict[tuple[bool, int], list[str]] = defaultdict(list)
        self._ops: list[tuple[bool, Op]] = []
        clear_s = self._clear_times(updates_s)
        lanes_s: dict[str, float] = {}
        for number, call in enumerate(sorted(step.collectives, key=lambda call: call.of_forward)):
            deps = self._deps(call)
            begin = (
                clear_s[call.of_forward, 0]
                if call.after is None
                else clear_s[call.of_forward, call.after + 1]
            )
            begin = max(begin, lanes_s.get(call.lane, 0.0))
            end = begin + call.duration_s
            if call.waited_s is not None:
                room = clear_s[call.before or (True, len(step.forward))]
                end = room + call.waited_s if call.waited_s else min(end, room)
            end = lanes_s[call.lane] = max(end, begin)
            op = Op(
                name=f"{_PREFIX[call.of_forward]}/collective {number:02d}.{call.name}",
                kind="communication",
                duration_s=end - begin,
                duration_std_s=call.duration_std_s,
                deps=deps,
                stream=call.lane,
            )
            if call.before is not None:
                (self.forward if call.before[0] else self.backward).add(call.before[1])
                self._followed_by[call.before].append(op.name)
            self._ops.append((call.of_forward, op))

    def _clear_times(self, updates_s: Sequence[float]) -> dict[tuple[bool, int], float]:
        """Return when every op could start but for its collectives, and each pass's end, on one stream."""
        waits: defaultdict[tuple[bool, int], float] = defaultdict(float)
        for call in self._step.collectives:
            if call.before is not None:
                waits[call.before] = max(waits[call.before], call.waited_s or 0.0)
        clear: dict[tuple[bool, int], float] = {}
        now = 0.0
        for of_forward, ops in ((False, self._step.backward), (True, self._step.forward)):
            for place, op in enumerate(ops):
                clear[of_forward, place] = now
                now += waits[of_forward, place] + op.duration_s + (updates_s[place] if of_forward else 0.0)
            clear[of_forward, len(ops)] = now
        return clear

    def _deps(self, call: StepCollective) -> tuple[str, ...]:
        if call.after is not None:
            (self.forward if call.of_forward else self.backward).add(call.after)
            ops = self._step.forward if call.of_forward else self._step.backward
            return (f"{_PREFIX[call.of_forward]}/{ops[call.after].name}",)
        if not call.of_forward:
            return ()
        last = len(self._step.backward) - 1
        self.backward.add(last)
        return (f"bwd/{self._step.backward[last].name}",)

    def before(self, *, of_forward: bool, place: int) -> list[str]:
        """Return the names of the collectives that an op waits for."""
        return self._followed_by.get((of_forward, place), [])

    def ops(self, *, of_forward: bool) -> list[Op]:
        """Return the collectives of a pass."""
        return [op for forward, op in self._ops if forward == of_forward]


_PREFIX = {False: "bwd", True: "fwd"}


def gradient_names(step: TrainingStep) -> list[str]:
    """Name gradients after their consumer, for traces do not know parameters' names."""
    seen: dict[int, int] = {}
    names = []
    for gradient in step.gradients:
        place = seen[gradient.consumer] = seen.get(gradient.consumer, -1) + 1
        names.append(f"{step.forward[gradient.consumer].name}/{place}")
    return names


def profile_of_step(
    path: str | Path,
    step: TrainingStep,
    *,
    name: str | None,
    workers: int,
    allreduce: AllReduce,
    metadata: dict[str, Any],
) -> Profile:
    """Make the profile of a step.

    The time of the parameters' update is divided among the forward ops that use them, by bytes: a
    scheduler without a barrier updates a gradient's parameters right before their first use. Ops
    of no duration that no gradient and no collective needs are left out. Collectives run on lanes of
    their own, which are streams of the profile.
    """
    if not step.forward or not step.backward:
        raise FormatError(path, "no training step found: a forward and a backward pass are needed")
    names = gradient_names(step)
    used: dict[int, list[int]] = {}
    for place, gradient in enumerate(step.gradients):
        used.setdefault(gradient.consumer, []).append(place)
    total = sum(gradient.size_bytes for gradient in step.gradients)
    produces = {gradient.producer for gradient in step.gradients}
    updates = [0.0] * len(step.forward)
    for place, places in used.items():
        share = sum(step.gradients[number].size_bytes for number in places)
        updates[place] = step.update_s * (share / total if total else len(places) / len(step.gradients))
    if not step.gradients:
        updates[0] = step.update_s
    waits = {place: tuple(names[number] for number in places) for place, places in used.items()}
    fixed = FixedOps(step, updates)
    backward = _ops("bwd", step.backward, produces | fixed.backward, [0.0] * len(step.backward), {}, fixed)
    forward = _ops("fwd", step.forward, set(used) | fixed.forward, updates, waits, fixed)
    with validated(path):
        return Profile(
            name=name or Path(path).name.partition(".")[0],
            workers=workers,
            ops=(*backward, *fixed.ops(of_forward=False), *forward, *fixed.ops(of_forward=True)),
            gradients=tuple(
                Gradient(
                    name=gradient_name,
                    size_bytes=gradient.size_bytes,
                    dtype=gradient.dtype,
                    producer=f"bwd/{step.backward[gradient.producer].name}",
                )
                for gradient_name, gradient in zip(names, step.gradients, strict=True)
            ),
            allreduce=allreduce,
            metadata=metadata,
        )


def _ops(
    prefix: str,
    ops: Sequence[StepOp],
    needed: set[int],
    extra: Sequence[float],
    waits: dict[int, tuple[str, ...]],
    fixed: FixedOps,
) -> list[Op]:
    needed = needed | {place for op in ops for place in op.waits_for_ops}
    return [
        Op(
            name=f"{prefix}/{op.name}",
            duration_s=op.duration_s + extra[place],
            duration_std_s=op.duration_std_s,
            deps=(
                *(f"{prefix}/{ops[other].name}" for other in op.waits_for_ops),
                *fixed.before(of_forward=prefix == "fwd", place=place),
            ),
            stream=op.stream,
            waits_for=waits.get(place, ()),
        )
        for place, op in enumerate(ops)
        if op.duration_s + extra[place] > 0 or place in needed
    ]
