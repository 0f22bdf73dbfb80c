"""Training by shards, and beside it DistributedDataParallel, as several modules of tests run it."""

import functools
import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from torch import nn

from pace.documents.options import Options
from pace.documents.schedule import Schedule
from pace.kinds import optimize
from pace.runtime.engine.plan import GradientSize
from tests.runtime.models import batches, build, weights
from tests.runtime.schedules import profile_of, sizes_of
from tests.runtime.training import OPTIMIZERS, Weights, backward, trainable, wrap


def halves_schedule(
    model: nn.Module, workers: int, seed: int, fusion: Literal["optimal", "none"] | None = None
) -> Schedule:
    """A sharded schedule with segments cut at random, and times that put gathers among the sums."""
    chance = random.Random(seed)
    made = _optimized(tuple(sizes_of(model)), workers, fusion or chance.choice(["optimal", "none", "none"]))
    pieces = []
    for segment in made.transfers:
        column = made.shard_layout.column_bytes(made.groups[segment.group].dtype)
        columns = segment.size_bytes // column
        cuts = {0, columns, *(chance.randrange(columns) for _ in range(2))}
        pieces += [
            segment.model_copy(
                update={
                    "offset_bytes": segment.offset_bytes + start * column,
                    "size_bytes": (end - start) * column,
                }
            )
            for start, end in pairwise(sorted(cuts))
        ]
    chance.shuffle(pieces)
    numbered = [piece.model_copy(update={"priority": place}) for place, piece in enumerate(pieces)]
    return made.model_copy(
        update={
            "transfers": tuple(numbered),
            "groups": tuple(
                group.model_copy(
                    update={"ready_s": chance.random() * 0.01}
                    if group.op == "reduce-scatter"
                    else {"tail_s": chance.random()}
                )
                for group in made.groups
            ),
        }
    )


@functools.cache  # many schedules are made for each model
def _optimized(sizes: tuple[GradientSize, ...], workers: int, fusion: Literal["optimal", "none"]) -> Schedule:
    return optimize(profile_of(sizes, workers), Options(exchange="sharded", fusion=fusion))


def train_by_shards(
    rank: int,
    transport: str,
    model_name: str,
    optimizer_name: str,
    *,
    steps: int,
    max_norm: float | None,
    double: bool = True,
    **options: Any,
) -> tuple[Weights, list[float]]:
    """Train with the wrapper's own clipping; return weights and norms."""
    model = build(model_name, double=double)
    options.setdefault("sharding", "on")
    optimizer = wrap(transport, OPTIMIZERS[optimizer_name](trainable(model)), model, **options)
    norms = []
    for batch in batches(model_name, steps, rank, double=double):
        optimizer.zero_grad()
        backward(model(*batch))
        if max_norm is not None:
            norms.append(float(optimizer.clip_grad_norm_(max_norm)))
        optimizer.step()
    trained = weights(model)
    optimizer.close()
    return trained, norms


def train_with_ddp_and_clip(
    rank: int,
    model_name: str,
    optimizer_name: str,
    *,
    steps: int,
    max_norm: float | None,
    double: bool = True,
) -> tuple[Weights, list[float]]:
    """The same with DistributedDataParallel and torch's own clipping."""
    model = build(model_name, double=double)
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = OPTIMIZERS[optimizer_name](trainable(model))
    norms = []
    for batch in batches(model_name, steps, rank, double=double):
        optimizer.zero_grad()
        backward(parallel(*batch))
        if max_norm is not None:
            norms.append(float(nn.utils.clip_grad_norm_(trainable(model), max_norm)))
        optimizer.step()
    return weights(model), norms


@dataclass(kw_only=True)
class ServiceJob:
    """What one rank saw of a job that plans by itself."""

    trained: Weights
    steps: int
    states: list[str]
    source: str
    in_halves: bool
    predicted: bool
    mode: str
    trial_s: dict[str, float]
    state_bytes: int
