"""One recorded training step of any tool, and the profile that is made from it.

A step has a forward pass, a backward pass and an update of the parameters. The profile's window starts
with the backward pass and ends with the next forward pass, which is taken to be like the recorded one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pace.documents.collective_costs import AllReduce
from pace.documents.profile import Gradient, Op, Profile
from pace.errors import FormatError
from pace.formats.fixed_ops import FixedOps
from pace.formats.reading import validated
from pace.formats.step_records import StepOp, TrainingStep


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
