"""Training by shards, and beside it DistributedDataParallel, as several modules of tests run it."""

import random
from itertools import pairwise
from typing import Any

from torch import nn

from pace.documents.options import Options
from pace.documents.sharded_schedule import ShardedSchedule
from pace.schedule_choice import best_schedule
from tests.runtime.models import batches, build, weights
from tests.runtime.schedules import profile_of, sizes_of
from tests.runtime.training import OPTIMIZERS, Weights, backward, trainable, wrap


def halves_schedule(model: nn.Module, workers: int, seed: int) -> ShardedSchedule:
    """A schedule in two halves whose segments are cut and ordered at random."""
    made = best_schedule(profile_of(sizes_of(model), workers), Options(target="sharded"))
    assert isinstance(made, ShardedSchedule)
    chance = random.Random(seed)
    pieces = []
    for segment in made.segments:
        cuts = {0, segment.num_columns, *(chance.randrange(segment.num_columns) for _ in range(2))}
        pieces += [
            segment.model_copy(
                update={"first_column": segment.first_column + start, "num_columns": end - start}
            )
            for start, end in pairwise(sorted(cuts))
        ]
    chance.shuffle(pieces)
    numbered = [piece.model_copy(update={"priority": place}) for place, piece in enumerate(pieces)]
    return made.model_copy(update={"segments": tuple(numbered)})


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
