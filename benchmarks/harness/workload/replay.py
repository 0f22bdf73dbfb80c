"""A profile replayed as a torch model: its gradients are real, its compute is emulated by sleeping.

Each *stage* holds the parameters whose gradients one op produces. Its forward and backward take the
profile's times on one ``Stream`` and let autograd, hooks and optimizers do all the rest. A stage adds
``|p|^2 / 2 + s <d, p>`` to the loss, where s comes with the iteration's input and the direction d belongs
to the rank: a true loss with the true gradient ``p + s d``, that ranks must average to get the right weights.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.harness.workload.stream import Stream
from pace.documents.profile import ELEMENT_BYTES, Gradient, Profile
from pace.errors import InvalidProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """What one stage replays.

    Attributes
    ----------
    producer, consumer
        Names of the ops that produce its gradients and that wait for them.
    gradients
        In the order of the profile.
    backward_s
        Its producer and every backward op since the stage before it in backward order.
    forward_s
        Its consumer and every forward op until the next stage's.
    """

    producer: str
    consumer: str
    gradients: tuple[Gradient, ...]
    backward_s: float
    forward_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """Stages in forward order, and the time of the window that belongs to none."""

    stages: tuple[StagePlan, ...]
    forward_before_s: float
    backward_after_s: float


def plan_replay(profile: Profile) -> ReplayPlan:
    """Group a profile's ops into stages.

    Raises
    ------
    InvalidProfile
        When the profile is not a window of one stream: backward ops, then forward ops in which every
        gradient is waited for, each by the stage that mirrors its producer's.
    """
    streams = {op.stream for op in profile.ops}
    if len(streams) != 1 or None in streams:
        raise InvalidProfile(
            f'profile "{profile.name}" has no single stream, so no replay can keep its times'
        )
    for gradient in profile.gradients:
        if gradient.dtype != "float32":
            raise InvalidProfile(f'gradient "{gradient.name}" is {gradient.dtype}: replays hold float32')
    number = {op.name: at for at, op in enumerate(profile.ops)}
    consumer: dict[str, str] = {}
    for op in profile.ops:
        for name in op.waits_for:
            consumer.setdefault(name, op.name)
    of_pair: dict[tuple[str, str], list[Gradient]] = {}
    for gradient in profile.gradients:
        if gradient.name not in consumer:
            raise InvalidProfile(f'no op waits for gradient "{gradient.name}", so no stage can hold it')
        of_pair.setdefault((gradient.producer, consumer[gradient.name]), []).append(gradient)
    pairs = sorted(of_pair, key=lambda pair: number[pair[1]])
    producers = [number[producer] for producer, _ in pairs]
    consumers = [number[consumer] for _, consumer in pairs]
    boundary = min(consumers, default=len(profile.ops))
    # Ops of the forward pass before its first gradient, and of the backward pass after its last.
    last_producer = max(producers, default=-1)
    first_forward = next(
        (at for at, op in enumerate(profile.ops) if at > last_producer and op.name.startswith("fwd/")),
        boundary,
    )
    mirrored = all(earlier >= later for earlier, later in pairwise(producers))
    if not mirrored or (pairs and last_producer >= min(first_forward, boundary)):
        raise InvalidProfile(
            f'profile "{profile.name}" does not use gradients in the reverse order of their producers:'
            " a chain of stages cannot replay it"
        )
    durations = [op.duration_s for op in profile.ops]
    stages = []
    for at, pair in enumerate(pairs):
        before = producers[at + 1] if at + 1 < len(pairs) else -1
        after = consumers[at + 1] if at + 1 < len(pairs) else len(durations)
        stages.append(
            StagePlan(
                producer=pair[0],
                consumer=pair[1],
                gradients=tuple(of_pair[pair]),
                backward_s=sum(durations[before + 1 : producers[at] + 1]),
                forward_s=sum(durations[consumers[at] : after]),
            )
        )
    return ReplayPlan(
        stages=tuple(stages),
        forward_before_s=sum(durations[first_forward:boundary]),
        backward_after_s=sum(durations[last_producer + 1 : first_forward]),
    )


class _Run(torch.autograd.Function):
    """One stage's forward and backward."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, stage: "Stage", *parameters: torch.Tensor) -> torch.Tensor:
        """Add the stage's loss to `value`, taking the profile's time."""
        started = stage.stream.begin()
        ctx.stage = stage
        ctx.save_for_backward(*parameters)
        ctx.scale = float(value[1])
        loss = 0.0
        for direction, parameter in zip(stage.directions, parameters, strict=True):
            flat = parameter.flatten()
            loss += float(flat @ flat) / 2 + ctx.scale * float(direction @ flat)
        result = value.clone()
        result[0] += loss
        stage.stream.end(stage.consumer, started, stage.forward_s)
        return result

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the true gradients, taking the profile's time."""
        stage = ctx.stage
        started = stage.stream.begin()
        factor = float(outer[0][0])
        gradients: list[torch.Tensor] = []
        for direction, parameter in zip(stage.directions, ctx.saved_tensors, strict=True):
            gradient = torch.add(parameter, direction, alpha=ctx.scale)
            gradients.append(gradient if factor == 1.0 else gradient * factor)
        stage.stream.end(stage.producer, started, stage.backward_s)
        return (outer[0], None, *gradients)


class Stage(nn.Module):
    """Parameters of one op, with its times; parameter names are the profile's gradients', dots replaced.

    Parameters
    ----------
    directions
        This rank's d for every parameter.
    """

    def __init__(
        self,
        plan: StagePlan,
        parameters: Sequence[torch.Tensor],
        directions: Sequence[torch.Tensor],
        stream: Stream,
    ) -> None:
        super().__init__()
        self.stream = stream
        self.producer = plan.producer
        self.consumer = plan.consumer
        self.forward_s = plan.forward_s
        self.backward_s = plan.backward_s
        self.directions = list(directions)
        for gradient, values in zip(plan.gradients, parameters, strict=True):
            self.register_parameter(parameter_name(gradient.name), nn.Parameter(values))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Run the stage: `value` holds the loss so far and the iteration's s."""
        result: torch.Tensor = _Run.apply(value, self, *self.parameters())  # type: ignore[no-untyped-call]
        return result


class _Ends(torch.autograd.Function):
    """Time of the window that belongs to no stage: forward before the first, backward after the last."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, replay: "Replay") -> torch.Tensor:
        """Take the forward part."""
        ctx.replay = replay
        replay.stream.end("fwd", replay.stream.begin(), replay.forward_before_s)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Take the backward part."""
        replay = ctx.replay
        replay.stream.end("bwd", replay.stream.begin(), replay.backward_after_s)
        return outer[0], None


class Replay(nn.Module):
    """A profile's window as a model; ``model(scale)`` returns the loss.

    Parameters
    ----------
    rank
        Decides this rank's data, the directions d. Weights start equal on all ranks.
    """

    def __init__(self, profile: Profile, *, rank: int) -> None:
        super().__init__()
        self.plan = plan = plan_replay(profile)
        self.stream = Stream()
        self.forward_before_s = plan.forward_before_s
        self.backward_after_s = plan.backward_after_s
        starts, directions = initial_weights(profile), directions_of(profile, rank)
        self.stages = nn.ModuleList(
            Stage(
                stage,
                [starts[gradient.name] for gradient in stage.gradients],
                [directions[gradient.name] for gradient in stage.gradients],
                self.stream,
            )
            for stage in plan.stages
        )
        self.units: nn.ModuleList | None = None  # runs of stages, where the model is sharded by them
        # Torch names a parameter by its place, so the profile that fits this model has other names.
        self.names = {
            gradient.name: f"stages.{number}.{parameter_name(gradient.name)}"
            for number, stage in enumerate(plan.stages)
            for gradient in stage.gradients
        }

    def forward(self, scale: torch.Tensor) -> torch.Tensor:
        """Run the forward pass; `scale` is s, a tensor of one element."""
        start = torch.zeros(1, requires_grad=True)
        value = torch.cat([start, scale.reshape(1)])
        value = _Ends.apply(value, self)  # type: ignore[no-untyped-call]
        for part in self.stages if self.units is None else self.units:
            value = part(value)
        loss: torch.Tensor = value[0].clone()  # fully_shard warns of views
        return loss


def parameter_name(gradient: str) -> str:
    """Return a name that torch allows for a parameter."""
    return gradient.replace(".", "__")


def renamed(profile: Profile) -> Profile:
    """Return the profile with gradients named as the replay's parameters are, so that schedules fit it."""
    plan = plan_replay(profile)
    names = {
        gradient.name: f"stages.{number}.{parameter_name(gradient.name)}"
        for number, stage in enumerate(plan.stages)
        for gradient in stage.gradients
    }
    return profile.replace(
        ops=tuple(
            op.model_copy(update={"waits_for": tuple(names[name] for name in op.waits_for)})
            for op in profile.ops
        ),
        gradients=tuple(
            gradient.model_copy(update={"name": names[gradient.name]}) for gradient in profile.gradients
        ),
    )


def initial_weights(profile: Profile) -> dict[str, torch.Tensor]:
    """Return the weights that every rank starts from, by gradient name; always the same."""
    return _drawn(profile, seed=1)


def directions_of(profile: Profile, rank: int) -> dict[str, torch.Tensor]:
    """Return d for every gradient, by name: the data of a rank; always the same."""
    return _drawn(profile, seed=1000 + rank)


def _drawn(profile: Profile, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        gradient.name: torch.randn(
            gradient.size_bytes // ELEMENT_BYTES["float32"], generator=generator, dtype=torch.float32
        )
        for gradient in profile.gradients
    }


LEARNING_RATE = 0.02

# Sums of float32 in another order; of weights of size 1 after tens of updates.
TOLERANCE = 2e-5

# What ``torch.nn.utils.clip_grad_norm_`` adds to the norm.
_TORCHS_EPSILON = 1e-6

FloatArray = npt.NDArray[np.float64]


def scale_of(iteration: int) -> float:
    """Return s, the input of an iteration; the same on all ranks, exact in float32."""
    return 0.5 + (iteration % 7) / 64


def norm_to_clip_to(profile: Profile) -> float:
    """Return a norm that the replay's gradients exceed about twice, so that every iteration clips.

    An element's gradient is normal with a variance of a little more than 1.
    """
    elements = sum(gradient.size_bytes // ELEMENT_BYTES[gradient.dtype] for gradient in profile.gradients)
    return 0.5 * math.sqrt(elements)


def expected_weights(
    profile: Profile, *, workers: int, iterations: int, max_norm: float | None = None
) -> FloatArray:
    """Return all weights that training must give after so many iterations, without any all-reduce.

    The replay's gradient is ``p + s d``; averaged over ranks, ``p + s mean(d)``. Plain SGD on that in float64
    is what every contender's weights are held against. They are in the order of the profile's gradients.

    Parameters
    ----------
    max_norm
        What gradients are clipped to by their global norm, as torch does it; None where they are not.
    """
    mean = sum(_flat(directions_of(profile, rank)) for rank in range(workers)) / workers
    weights = _flat(initial_weights(profile))
    for iteration in range(iterations):
        gradient = weights + scale_of(iteration) * mean
        if max_norm is not None:
            gradient *= min(max_norm / (float(np.linalg.norm(gradient)) + _TORCHS_EPSILON), 1.0)
        weights = weights - LEARNING_RATE * gradient
    return weights


def _flat(tensors: dict[str, torch.Tensor]) -> FloatArray:
    return np.concatenate([tensor.numpy().astype(np.float64) for tensor in tensors.values()])


def sha256(weights: torch.Tensor) -> str:
    """Hash weights to the bit: equal on all ranks, or they have drifted apart."""
    return hashlib.sha256(weights.contiguous().numpy().tobytes()).hexdigest()
