"""Schedules made by hand for a model: any grouping, any cuts, any order."""

import functools
import random
from collections.abc import Sequence

from torch import nn

from pace.documents.collective_costs import AffineAllReduce
from pace.documents.profile import ELEMENT_BYTES, Gradient, Op, Profile, fingerprint
from pace.documents.schedule import Execution, Group, Schedule, Segment
from pace.planning.allreduce.optimize import optimize_allreduce
from pace.runtime.control.parameters import gradient_sizes
from pace.runtime.engine.plan import GradientSize, cut


def sizes_of(model: nn.Module) -> list[GradientSize]:
    """The model's gradients as the fingerprint sees them."""
    return gradient_sizes({n: p for n, p in model.named_parameters() if p.requires_grad})


def shuffled_schedule(
    model: nn.Module, workers: int, seed: int, *, max_segment_bytes: int = 1000
) -> Schedule:
    """Fuse, cut and order at random, so that nothing agrees with the order of readiness."""
    chance = random.Random(seed)
    sizes = sizes_of(model)
    chance.shuffle(sizes)
    fused: list[list[GradientSize]] = []
    for size in sizes:
        fitting = [group for group in fused if group[0].dtype == size.dtype]
        if fitting and chance.random() < 0.6:
            chance.choice(fitting).append(size)
        else:
            fused.append([size])
    return make_schedule(sizes, fused, workers, chance, max_segment_bytes=max_segment_bytes)


def make_schedule(
    sizes: list[GradientSize],
    fused: list[list[GradientSize]],
    workers: int,
    chance: random.Random,
    *,
    max_segment_bytes: int,
) -> Schedule:
    """Build the document; times are made up, as the runtime only needs their order."""
    groups = []
    for members in fused:
        (dtype,) = (name for name in ELEMENT_BYTES if name == members[0].dtype)
        groups.append(
            Group(
                tensors=tuple(member.name for member in members),
                size_bytes=sum(member.size_bytes for member in members),
                dtype=dtype,
                ready_s=chance.random(),
                tail_s=chance.random(),
                transfer_s=0.001,
            )
        )
    pieces = [
        piece
        for number, group in enumerate(groups)
        for piece in cut(number, group.size_bytes, group.dtype, max_segment_bytes)
    ]
    chance.shuffle(pieces)
    segments = tuple(
        Segment(
            op="all-reduce",
            group=piece.group,
            offset_bytes=piece.offset_bytes,
            size_bytes=piece.size_bytes,
            priority=place,
            start_s=float(place),
            end_s=place + 1.0,
        )
        for place, piece in enumerate(pieces)
    )
    # What proves optimality does not concern the runtime: it stays that of the schedule it came from.
    made = _optimized(tuple(sorted(sizes, key=lambda size: size.name)), workers)
    return made.model_copy(
        update={
            "fingerprint": fingerprint(((s.name, s.size_bytes, s.dtype) for s in sizes), workers),
            "execution": Execution(max_in_flight=4, max_segment_bytes=max_segment_bytes),
            "groups": tuple(groups),
            "transfers": segments,
        }
    )


@functools.cache  # many schedules are made for each model
def _optimized(sizes: tuple[GradientSize, ...], workers: int) -> Schedule:
    return optimize_allreduce(profile_of(sizes, workers))


def profile_of(sizes: Sequence[GradientSize], workers: int) -> Profile:
    """A profile with these gradients; its times are made up."""
    forward = Op(name="fwd", duration_s=0.01, deps=("bwd",), waits_for=tuple(size.name for size in sizes))
    return Profile(
        name="by hand",
        workers=workers,
        ops=(Op(name="bwd", duration_s=0.01), forward),
        gradients=tuple(
            Gradient(name=size.name, size_bytes=size.size_bytes, dtype=dtype, producer="bwd")
            for size in sizes
            for dtype in ELEMENT_BYTES
            if dtype == size.dtype
        ),
        allreduce=AffineAllReduce(latency_s=0.001, seconds_per_byte=1e-9),
    )
