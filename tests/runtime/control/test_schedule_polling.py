"""A job that starts before its schedule exists adopts it at a step that all ranks agree on."""

from pathlib import Path
from typing import Any

from pace.client import Client
from pace.runtime.control import plan_source
from tests.api.process import ServiceProcess
from tests.runtime.launch import run_ranks
from tests.runtime.models import batches, build, weights
from tests.runtime.schedules import profile_of, sizes_of
from tests.runtime.training import (
    OPTIMIZERS,
    Case,
    backward,
    difference,
    equal_bits,
    train_plainly,
    trainable,
    wrap,
)

JOB = "late"
STEPS_BEFORE = 10
STEPS_AFTER = 25
MOST_STEPS = 20_000


def _train_until_adopted(rank: int, size: int, url: str) -> Any:
    plan_source._START_TIMEOUT_S = 60.0
    model = build("conv")
    optimizer = wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model, service=url, job=JOB)
    steps = 0
    remaining = MOST_STEPS
    batch = batches("conv", 1, rank)[0]
    started_with = optimizer.report().source
    while remaining:
        optimizer.zero_grad()
        backward(model(*batch))
        optimizer.step()
        steps += 1
        remaining -= 1
        if steps == STEPS_BEFORE and rank == 0:
            with Client(url) as client:
                client.create_schedule(profile_of(sizes_of(build("conv")), size), job=JOB)
        # What every rank knows without asking the others.
        if optimizer._plan.source == "schedule" and remaining > STEPS_AFTER:
            remaining = STEPS_AFTER
    found = optimizer.report().source
    trained = weights(model)
    optimizer.close()
    return trained, steps, started_with, found


def test_a_schedule_that_comes_late_is_adopted_by_all_ranks_at_once(tmp_path: Path) -> None:
    """Trained before, during and after the change, the weights are those of plain training."""
    with ServiceProcess(tmp_path) as service:
        ranks = run_ranks(_train_until_adopted, 2, service.url, timeout_s=200)
    (first, steps, started_with, found), (second, other_steps, _, _) = ranks
    assert (started_with, found) == ("plain", "schedule")
    assert steps == other_steps
    assert equal_bits(first, second)
    assert difference(first, train_plainly(Case(steps=steps), 2, repeat=True)) <= 1e-3
